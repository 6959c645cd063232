"""A folder keeps what it has acknowledged, whatever happens to the process, the machine or the disk."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sexton.adapters.files import FileDisk
from sexton.adapters.objects import open_store
from sexton.adapters.objects.folder import FolderStore
from sexton.errors import DamagedObjectError
from sexton.ports.objects import ObjectMissingError, ObjectStore, StoreRefusedError, StoreUnavailableError
from sexton.simulate.disk import DiskWeather, Trouble, VirtualDisk
from sexton.simulate.loop import MS, Process, new_loop
from tests.log.stepping import SteppingDisk
from tests.project import PROJECT_DIR
from tests.robustness.disks import small_disk

PUT = """
import asyncio, sys
from sexton.adapters.files import FileDisk
from sexton.adapters.objects.folder import FolderStore

async def main():
    disk = FileDisk(1)
    await FolderStore(disk, sys.argv[1]).put("c/l0/ab/object", b"x" * 100_000)
    print("done", flush=True)
    disk.close()

asyncio.run(main())
"""
STRACE_TIMEOUT_S = 120
WHOLE = b"x" * 100_000
CHANGES = "mkdir,write,fsync,linkat"
"""System calls of a put, each a moment at which the process may be killed. strace counts them by thread, hence one."""


# ---- power loss, at any moment ----


def crashed(seed: int) -> tuple[int, int]:
    """Puts objects, some of them twice, until the power goes. Returns how many puts had ended, and how many objects
    that had not were there all the same."""
    rng = random.Random(seed)
    loop = new_loop(rng)
    volume = VirtualDisk(rng, DiskWeather(page_bytes=rng.choice([0, 512]), hiccup_probability=0.1, hiccup_ns=5 * MS))
    volume.of(loop.world, loop).make_directory("/data/objects")
    loop.run_until_complete(volume.of(loop.world, loop).flush_directory("/data"))
    loop.run_until_complete(volume.of(loop.world, loop).flush_directory("/"))
    contents = {f"c/l0/{number % 3:02x}/{number}": rng.randbytes(3_000) for number in range(12)}
    ended: set[str] = set()
    deleted: set[str] = set()

    async def put(store: ObjectStore, key: str) -> None:
        await asyncio.sleep(rng.random() * 0.03)
        await store.put(key, contents[key])
        ended.add(key)

    async def write(store: ObjectStore, key: str) -> None:
        await asyncio.gather(*(put(store, key) for _ in range(rng.randint(1, 2))))
        if rng.random() < 0.2:
            ended.discard(key)
            await store.delete([key])
            deleted.add(key)

    async def script(store: ObjectStore) -> None:
        await asyncio.gather(*(write(store, key) for key in contents))

    async def main() -> int:
        process = Process("broker")
        loop.spawn(process, script(FolderStore(volume.of(process, loop), "/data/objects")))
        await asyncio.sleep(rng.random() * 0.05)
        loop.kill(process)
        volume.process_killed(power_lost=True)
        store = FolderStore(volume.of(loop.world, loop), "/data/objects")
        there = {one.key async for one in store.list("")}
        assert ended <= there, f"seed {seed}: acknowledged, and not there after the power loss"
        assert not deleted & there, f"seed {seed}: deleted, and there after the power loss"
        for key in sorted(there):
            assert bytes(await store.get(key, 0, 3_000)) == contents[key], f"seed {seed}: {key} is not whole"
        return len(there - ended)

    try:
        return len(ended), loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_power_loss_leaves_what_was_acknowledged_and_otherwise_all_of_an_object_or_nothing() -> None:
    outcomes = [crashed(seed) for seed in range(150)]
    assert any(there for _, there in outcomes), "some were there before they were acknowledged"


# ---- kills, at each step ----


def strace(*options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    found = shutil.which("strace")
    assert found is not None, "strace is not installed: run scripts/setup test"
    command = [found, "-f", "-qq", "--seccomp-bpf", *options, sys.executable, "-c", PUT, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT_DIR / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=STRACE_TIMEOUT_S, check=False
    )


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_process_that_is_killed_at_any_step_leaves_the_whole_object_or_nothing(tmp_path: Path) -> None:
    outcomes: dict[tuple[str, int], bool] = {}
    for call in CHANGES.split(","):
        for number in range(1, 20):
            folder = tmp_path / f"{call}-{number}"
            folder.mkdir()
            done = strace("-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={number}", folder=folder)
            left = files_in(folder)
            assert left in ({}, {"c/l0/ab/object": WHOLE}), f"killed at {call} {number}"
            if done.returncode == 0:
                assert left, "acknowledged, and not there"
                break
            outcomes[call, number] = bool(left)
        else:
            raise AssertionError("it never came to its end")
    assert outcomes["fsync", 5] is False, "before it has a name it is not there"
    assert outcomes["fsync", 6] is True, "the last flush is that of its name"
    assert ("fsync", 7) not in outcomes
    assert ("linkat", 1) in outcomes
    assert ("mkdir", 3) in outcomes


def test_a_put_flushes_the_object_names_it_and_flushes_the_name(tmp_path: Path) -> None:
    """T19. In this order: the directories it made, the bytes, the name."""
    folder = tmp_path / "objects"
    folder.mkdir()
    trace = tmp_path / "trace"
    done = strace("-y", "-o", str(trace), "-e", f"trace={CHANGES}", folder=folder)
    assert "done" in done.stdout, done.stderr
    calls = [line.split(None, 1)[1] for line in trace.read_text().splitlines() if str(tmp_path) in line]
    seen = [_shown(call, str(tmp_path)) for call in calls]
    assert seen[:3] == ["mkdir /objects/c", "mkdir /objects/c/l0", "mkdir /objects/c/l0/ab"]
    assert sorted(seen[3:7]) == ["fsync /", "fsync /objects", "fsync /objects/c", "fsync /objects/c/l0"]
    assert seen[7:] == [
        "write unnamed",
        "fsync unnamed",
        "linkat /objects/c/l0/ab/object",
        "fsync /objects/c/l0/ab",
    ]


def _shown(call: str, root: str) -> str:
    name = call.partition("(")[0]
    if name == "linkat":
        names: list[str] = re.findall(r'"([^"]+)"', call)
        return f"linkat {names[-1].removeprefix(root)}"
    path = re.findall(r'[<"]([^<>"]*' + re.escape(root) + r'[^<>"]*)[>"]', call)[0]
    if "/#" in path:  # a file without a name is shown by its inode
        return f"{name} unnamed"
    return f"{name} {path.removeprefix(root) or '/'}"


def test_a_file_system_without_unnamed_files_gets_a_temporary_name_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refusing(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refusing)

    async def main() -> None:
        store = open_store(f"file://{tmp_path}")
        for _ in range(2):
            await store.put("c/object", b"whole")
        assert files_in(tmp_path) == {"c/object": b"whole"}
        await store.close()

    asyncio.run(main())


# ---- disks in trouble ----


def on_simulated_disk(scenario: Callable[[FolderStore, VirtualDisk], Any]) -> None:
    rng = random.Random(1)
    loop = new_loop(rng)
    volume = VirtualDisk(rng)
    disk = volume.of(loop.world, loop)
    disk.make_directory("/objects")
    loop.run_until_complete(scenario(FolderStore(disk, "/objects"), volume))
    loop.close()


def test_a_full_disk_is_as_a_store_that_is_away_and_goes_on_when_there_is_room() -> None:
    async def scenario(store: FolderStore, volume: VirtualDisk) -> None:
        await store.put("c/a", b"x")
        volume.troubles.append(Trouble(errno.ENOSPC, "/objects"))
        with pytest.raises(StoreUnavailableError, match=r"No space left.*Make room"):
            await store.put("c/b", b"x")
        assert bytes(await store.get("c/a", 0, 1)) == b"x"
        volume.troubles.clear()
        await store.put("c/b", b"x")

    on_simulated_disk(scenario)


def test_a_disk_that_cannot_be_read_is_no_missing_object() -> None:
    """T9: what cannot be read is an error, never nothing."""

    async def scenario(store: FolderStore, volume: VirtualDisk) -> None:
        await store.put("c/a", b"x")
        volume.troubles.append(Trouble(errno.EIO, "/objects"))
        with pytest.raises(StoreUnavailableError, match="Input/output error"):
            await store.get("c/a", 0, 1)
        volume.troubles.clear()
        volume.weather.flush_failure_probability = 1.0
        with pytest.raises(StoreUnavailableError):
            await store.put("c/b", b"x")

    on_simulated_disk(scenario)


def test_a_real_disk_that_is_full_or_read_only_is_still_read(tmp_path: Path) -> None:
    with small_disk(tmp_path / "image", tmp_path / "disk", 16) as disk:

        async def main() -> None:
            store = open_store(f"file://{disk.place}/objects")
            await store.create_marker("sexton.json", b"mine")
            await store.put("c/a", b"data")
            disk.fill()
            with pytest.raises(StoreUnavailableError, match="No space left"):
                await store.put("c/b", bytes(100_000))
            disk.make_room()
            await store.put("c/b", bytes(100_000))
            disk.turn_read_only()
            with pytest.raises(StoreRefusedError, match="read-only"):
                await store.put("c/c", b"data")
            with pytest.raises(StoreRefusedError, match="read-only"):
                await store.delete(["c/a"])
            assert bytes(await store.get("c/a", 0, 4)) == b"data"
            assert await store.size_bytes("c/b") == 100_000
            assert await store.read_marker("sexton.json") == b"mine"
            assert len([one async for one in store.list("")]) == 3
            await store.close()

        asyncio.run(main())


def test_a_folder_that_is_not_there_is_refused_and_not_made() -> None:
    """An unmounted disk must not look like an empty store."""

    async def scenario(store: FolderStore, volume: VirtualDisk) -> None:
        await store.put("c/a", b"x")
        volume.of(new_loop(random.Random(1)).world, new_loop(random.Random(1))).remove_tree("/objects")
        for call in (store.put("c/b", b"x"), store.get("c/a", 0, 1), store.size_bytes("c/a")):
            with pytest.raises(StoreRefusedError, match="the folder is not there"):
                await call
        with pytest.raises(StoreRefusedError, match="the folder is not there"):
            [one async for one in store.list("")]
        assert await store.read_marker("m") is None
        assert volume.find("/objects") is None
        assert await store.create_marker("m", b"mine") == b"mine"
        await store.put("c/b", b"x")

    on_simulated_disk(scenario)


def test_a_folder_that_lost_its_marker_is_a_disk_that_was_unmounted() -> None:
    """What is left is an empty folder on another disk: nothing may be stored, found missing, or deleted there."""

    async def scenario(store: FolderStore, volume: VirtualDisk) -> None:
        await store.create_marker("m", b"mine")
        await store.put("c/a", b"x")
        disk = volume.of(new_loop(random.Random(1)).world, new_loop(random.Random(1)))
        disk.remove_tree("/objects")
        disk.make_directory("/objects")
        for call in (store.put("c/b", b"x"), store.get("c/a", 0, 1), store.size_bytes("c/a"), store.delete(["c/a"])):
            with pytest.raises(StoreRefusedError, match=r"the folder has lost its marker m.*mount it"):
                await call
        with pytest.raises(StoreRefusedError, match="lost its marker"):
            [one async for one in store.list("")]
        assert await store.read_marker("m") is None
        assert await store.create_marker("m", b"mine") == b"mine"
        await store.put("c/b", b"x")
        with pytest.raises(ObjectMissingError):
            await store.get("c/a", 0, 1)

    on_simulated_disk(scenario)


def test_a_real_disk_that_is_unmounted_takes_nothing_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with small_disk(tmp_path / "image", tmp_path / "disk", 16) as disk:

        async def main() -> None:
            store = open_store(f"file://{disk.place}")
            await store.create_marker("sexton.json", b"mine")
            await store.put("c/l0/a", b"data")
            disk.unmount()
            for call in (store.put("c/l0/b", b"data"), store.get("c/l0/a", 0, 4), store.put("c/l0/b", b"data")):
                with pytest.raises(StoreRefusedError, match="mount it"):
                    await call
            disk.mount()
            assert bytes(await store.get("c/l0/a", 0, 4)) == b"data"
            await store.put("c/l0/b", b"data")
            assert [one.key async for one in store.list("c")] == ["c/l0/a", "c/l0/b"]
            await store.close()

        asyncio.run(main())


def test_a_directory_that_somebody_removed_is_made_again() -> None:
    async def scenario(store: FolderStore, volume: VirtualDisk) -> None:
        await store.put("c/l0/a", b"x")
        volume.of(new_loop(random.Random(1)).world, new_loop(random.Random(1))).remove_tree("/objects/c")
        with pytest.raises(StoreUnavailableError):
            await store.put("c/l0/b", b"x")
        await store.put("c/l0/b", b"x")
        with pytest.raises(ObjectMissingError):
            await store.get("c/l0/a", 0, 1)

    on_simulated_disk(scenario)


def test_a_shortened_object_is_damaged(tmp_path: Path) -> None:
    async def main() -> None:
        store = open_store(f"file://{tmp_path}")
        await store.put("c/a", b"0123456789")
        os.truncate(tmp_path / "c" / "a", 9)
        with pytest.raises(DamagedObjectError, match="9 bytes are there from byte 0, not 10"):
            await store.get("c/a", 0, 10)
        await store.close()

    asyncio.run(main())


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("not a folder")

    async def main() -> None:
        store = open_store(f"file://{tmp_path}/objects")
        for call in (store.put("c/a", b"x"), store.get("c/a", 0, 1), store.create_marker("m", b"x")):
            with pytest.raises(StoreRefusedError):
                await call
        await store.close()

    asyncio.run(main())


def test_of_a_deletion_that_fails_for_some_each_ones_outcome_is_kept(tmp_path: Path) -> None:
    """T17: only what is gone for certain is said to be gone."""

    def fail(step: str) -> None:
        if step.startswith("remove") and step[-1] in "13":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if step.startswith("flush the names") and step.endswith("/unflushed"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def main() -> None:
        disk = FileDisk(2)
        plain = FolderStore(disk, str(tmp_path))
        keys = [*(f"c/{number}" for number in range(4)), "unflushed/4"]
        for key in keys:
            await plain.put(key, b"x")
        store = FolderStore(SteppingDisk(disk, fail), str(tmp_path))
        assert list(await store.delete(keys)) == ["c/0", "c/2"]
        with pytest.raises(StoreUnavailableError):
            await store.delete(["c/1", "c/3"])
        assert list(await plain.delete(keys)) == keys
        disk.close()

    asyncio.run(main())


def test_keys_stay_below_the_folder(tmp_path: Path) -> None:
    async def main() -> None:
        store = open_store(f"file://{tmp_path}")
        for key in ("../x", "a/../../x", "/etc/x", "a//b", "."):
            with pytest.raises(ValueError, match="no key"):
                await store.put(key, b"x")
        await store.close()

    asyncio.run(main())
