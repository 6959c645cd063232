"""One behaviour suite for every disk: the real one and the simulated one."""

from __future__ import annotations

import asyncio
import errno
import importlib
import importlib.util
import random
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sexton.errors import CorruptLogError, LogInUseError, UnsupportedFormatError
from sexton.ports.disk import Disk
from sexton.records import batch as batches
from sexton.records.batch import Record
from sexton.simulate.disk import Trouble, VirtualDisk
from sexton.simulate.inode import Inode
from sexton.simulate.loop import Process, SimulatedLoop, new_loop

T = TypeVar("T")
Scenario = Callable[[Disk, str], Awaitable[None]]
Runner = Callable[[Scenario], None]


@pytest.fixture(params=["simulated", "files"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Runner:
    """Runs a scenario on a disk of that kind, in a folder of its own."""
    if request.param == "simulated":

        def simulated(scenario: Scenario) -> None:
            rng = random.Random(1)
            loop = new_loop(rng)
            disk = VirtualDisk(rng).of(loop.world, loop)
            disk.make_directory("/data")
            loop.run_until_complete(scenario(disk, "/data"))
            loop.close()

        return simulated
    if importlib.util.find_spec("sexton.adapters.files") is None:
        pytest.skip("there is no real disk yet")
    files = importlib.import_module("sexton.adapters.files")

    def real(scenario: Scenario) -> None:
        async def main() -> None:
            await scenario(files.FileDisk(), str(tmp_path))

        asyncio.run(main())

    return real


def test_a_file_grows_at_its_end_and_is_read_anywhere(run: Runner) -> None:
    async def scenario(disk: Disk, root: str) -> None:
        file = disk.open(f"{root}/a", create=True)
        file.append([b"hello ", bytearray(b"wor"), memoryview(b"ld")])
        file.append([])
        assert file.path == f"{root}/a"
        assert file.size_bytes == 11
        assert file.read(6, 5) == b"world"
        assert file.read(6, 500) == b"world"
        assert file.read(11, 5) == b""
        file.close()
        file.close()

    run(scenario)


def test_what_was_appended_can_be_read_back(run: Runner) -> None:
    async def script(disk: Disk, root: str) -> None:
        file = disk.open(f"{root}/a", create=True)
        file.append([b"one", b"two"])
        await file.read_back()
        assert file.size_bytes == 6
        assert file.read(0, 10) == b"onetwo"
        file.append([b"three"])
        assert file.read(3, 10) == b"twothree"

    run(script)


def test_appending_goes_on_after_a_cut_and_after_opening_again(run: Runner) -> None:
    async def scenario(disk: Disk, root: str) -> None:
        file = disk.open(f"{root}/a", create=True)
        file.append([b"0123456789"])
        file.truncate(4)
        assert file.size_bytes == 4
        file.append([b"x"])
        await file.flush()
        file.close()
        again = disk.open(f"{root}/a")
        again.append([b"y"])
        assert again.read(0, 100) == b"0123xy"
        assert disk.read_file(f"{root}/a") == b"0123xy"

    run(scenario)


def test_a_file_that_is_not_there(run: Runner) -> None:
    async def scenario(disk: Disk, root: str) -> None:
        with pytest.raises(FileNotFoundError):
            disk.open(f"{root}/a")
        assert not disk.exists(f"{root}/a")
        assert disk.read_file(f"{root}/a") is None
        disk.remove(f"{root}/a")
        with pytest.raises(FileNotFoundError):
            disk.rename(f"{root}/a", f"{root}/b")
        with pytest.raises(FileNotFoundError):
            disk.open(f"{root}/no/directory", create=True)

    run(scenario)


def test_names_are_listed_sorted_and_a_directory_that_is_not_there_has_none(run: Runner) -> None:
    async def scenario(disk: Disk, root: str) -> None:
        disk.make_directory(f"{root}/d/e")
        disk.make_directory(f"{root}/d/e")
        for name in ("b", "a", "c"):
            disk.open(f"{root}/d/{name}", create=True).close()
        assert disk.list(f"{root}/d") == ["a", "b", "c", "e"]
        assert disk.list(f"{root}/none") == []
        await disk.flush_directory(f"{root}/d")

    run(scenario)


def test_a_renamed_or_removed_file_goes_on_for_those_who_have_it_open(run: Runner) -> None:
    async def scenario(disk: Disk, root: str) -> None:
        file = disk.open(f"{root}/a", create=True)
        file.append([b"1"])
        disk.rename(f"{root}/a", f"{root}/b")
        file.append([b"2"])
        assert disk.read_file(f"{root}/b") == b"12"
        assert disk.list(root) == ["b"]
        disk.remove(f"{root}/b")
        file.append([b"3"])
        assert file.read(0, 10) == b"123"
        assert disk.list(root) == []

    run(scenario)


def test_renaming_replaces_a_file_and_moves_a_directory_whole(run: Runner) -> None:
    async def scenario(disk: Disk, root: str) -> None:
        disk.make_directory(f"{root}/t-0")
        for name in ("t-0/x", "old"):
            file = disk.open(f"{root}/{name}", create=True)
            file.append([name.encode()])
            file.close()
        disk.rename(f"{root}/t-0", f"{root}/t-0-delete")
        assert disk.list(root) == ["old", "t-0-delete"]
        disk.rename(f"{root}/t-0-delete/x", f"{root}/old")
        assert disk.read_file(f"{root}/old") == b"t-0/x"
        assert disk.list(f"{root}/t-0-delete") == []

    run(scenario)


def test_a_file_is_replaced_whole(run: Runner) -> None:
    async def scenario(disk: Disk, root: str) -> None:
        await disk.replace_file(f"{root}/checkpoint", b"one")
        await disk.replace_file(f"{root}/checkpoint", b"two, longer")
        assert disk.read_file(f"{root}/checkpoint") == b"two, longer"
        assert disk.list(root) == ["checkpoint"]

    run(scenario)


def test_a_file_is_created_whole_and_never_replaced(run: Runner) -> None:
    async def scenario(disk: Disk, root: str) -> None:
        await disk.create_file(f"{root}/a", memoryview(b"one"))
        with pytest.raises(FileExistsError):
            await disk.create_file(f"{root}/a", b"two")
        assert disk.read_file(f"{root}/a") == b"one"
        assert disk.list(root) == ["a"]
        with pytest.raises(FileNotFoundError):
            await disk.create_file(f"{root}/none/a", b"one")

    run(scenario)


def test_a_part_of_a_file_is_read_and_its_size_seen_by_its_path(run: Runner) -> None:
    async def scenario(disk: Disk, root: str) -> None:
        await disk.create_file(f"{root}/a", b"0123456789")
        assert disk.read_part(f"{root}/a", 3, 4) == b"3456"
        assert disk.read_part(f"{root}/a", 8, 4) == b"89"
        assert disk.size_of(f"{root}/a") == 10
        assert disk.size_of(root) is None
        with pytest.raises(FileNotFoundError):
            disk.size_of(f"{root}/b")
        with pytest.raises(FileNotFoundError):
            disk.read_part(f"{root}/b", 0, 1)
        with pytest.raises(IsADirectoryError):
            disk.read_part(root, 0, 1)

    run(scenario)


def test_work_in_a_thread_is_done_on_return_and_its_error_is_raised(run: Runner) -> None:
    async def scenario(disk: Disk, root: str) -> None:
        found: list[int] = []
        await disk.create_file(f"{root}/a", b"one")
        await disk.in_thread(lambda: found.append(disk.open(f"{root}/a").size_bytes))
        assert found == [3]
        with pytest.raises(FileNotFoundError):
            await disk.in_thread(lambda: found.append(disk.open(f"{root}/b").size_bytes))

    run(scenario)


def test_a_tree_is_removed_with_all_that_is_in_it(run: Runner) -> None:
    async def scenario(disk: Disk, root: str) -> None:
        disk.make_directory(f"{root}/d/e")
        disk.open(f"{root}/d/e/a", create=True).close()
        disk.open(f"{root}/d/b", create=True).close()
        disk.remove_tree(f"{root}/d")
        assert not disk.exists(f"{root}/d")
        disk.remove_tree(f"{root}/d")

    run(scenario)


def test_free_bytes_are_part_of_the_total(run: Runner) -> None:
    async def scenario(disk: Disk, root: str) -> None:
        free_bytes, total_bytes = disk.free_bytes(root)
        assert 0 < free_bytes <= total_bytes

    run(scenario)


def test_a_directory_has_one_holder(run: Runner) -> None:
    async def scenario(disk: Disk, root: str) -> None:
        with disk.lock(root), pytest.raises(LogInUseError), disk.lock(root):
            pass
        with disk.lock(root):
            pass

    run(scenario)


# What only the simulated disk can show: the end of a machine


def simulate(seed: int, main: Callable[[SimulatedLoop, VirtualDisk], Coroutine[Any, Any, T]]) -> T:
    rng = random.Random(seed)
    loop = new_loop(rng)
    volume = VirtualDisk(rng)
    try:
        return loop.run_until_complete(main(loop, volume))
    finally:
        loop.close()


async def crash(loop: SimulatedLoop, volume: VirtualDisk, script: Callable[[Disk], Coroutine[Any, Any, None]]) -> Disk:
    """Runs a script as a process until it waits forever, then takes the power away."""
    process = Process("doomed")
    loop.spawn(process, script(volume.of(process, loop)))
    await asyncio.sleep(10)
    loop.kill(process)
    volume.process_killed(power_lost=True)
    return volume.of(Process("next"), loop)


def test_a_power_loss_keeps_what_was_flushed_and_a_perhaps_torn_prefix_of_the_rest() -> None:
    flushed, unflushed = b"flushed|", [b"first|", b"second|", b"third|"]
    outcomes = set()

    async def script(disk: Disk) -> None:
        file = disk.open("/a", create=True)
        file.append([flushed])
        await file.flush()
        await disk.flush_directory("/")
        for part in unflushed:
            file.append([part])
        await asyncio.sleep(1000)

    async def main(loop: SimulatedLoop, volume: VirtualDisk) -> None:
        content = (await crash(loop, volume, script)).read_file("/a")
        assert content is not None
        assert content.startswith(flushed)
        rest = content[len(flushed) :]
        whole = next(n for n in (3, 2, 1, 0) if rest.startswith(b"".join(unflushed[:n])))
        torn_bytes = len(rest) - len(b"".join(unflushed[:whole]))
        assert torn_bytes <= (len(unflushed[whole]) if whole < 3 else 0)
        outcomes.add((whole, torn_bytes > 0))

    for seed in range(200):
        simulate(seed, main)
    assert outcomes == {(0, False), (0, True), (1, False), (1, True), (2, False), (2, True), (3, False)}


def test_a_cut_that_was_not_flushed_may_come_undone() -> None:
    async def script(disk: Disk) -> None:
        file = disk.open("/a", create=True)
        file.append([b"0123456789"])
        await file.flush()
        await disk.flush_directory("/")
        file.truncate(3)
        file.append([b"abc"])
        await asyncio.sleep(1000)

    async def main(loop: SimulatedLoop, volume: VirtualDisk) -> bytes | None:
        return (await crash(loop, volume, script)).read_file("/a")

    outcomes = {simulate(seed, main) for seed in range(100)}
    assert {b"0123456789", b"012", b"012abc"} <= outcomes


def test_names_survive_in_order_and_only_for_sure_after_a_flush_of_the_directory() -> None:
    async def script(disk: Disk) -> None:
        for name in ("a", "b"):
            disk.open(f"/{name}", create=True)
        await disk.flush_directory("/")
        disk.rename("/a", "/c")
        disk.remove("/b")
        disk.open("/d", create=True)
        await asyncio.sleep(1000)

    async def main(loop: SimulatedLoop, volume: VirtualDisk) -> tuple[str, ...]:
        return tuple((await crash(loop, volume, script)).list("/"))

    outcomes = {simulate(seed, main) for seed in range(100)}
    assert outcomes == {("a", "b"), ("b", "c"), ("c",), ("c", "d")}


def test_a_move_between_directories_survives_in_both_or_in_neither() -> None:
    async def script(disk: Disk) -> None:
        disk.make_directory("/x")
        disk.make_directory("/y")
        disk.open("/x/a", create=True)
        for directory in ("/", "/x", "/y"):
            await disk.flush_directory(directory)
        disk.open("/x/b", create=True)
        disk.rename("/x/a", "/y/a")
        disk.open("/y/c", create=True)
        await asyncio.sleep(1000)

    async def main(loop: SimulatedLoop, volume: VirtualDisk) -> tuple[tuple[str, ...], tuple[str, ...]]:
        disk = await crash(loop, volume, script)
        return tuple(disk.list("/x")), tuple(disk.list("/y"))

    outcomes = {simulate(seed, main) for seed in range(200)}
    assert all(("a" in x) != ("a" in y) for x, y in outcomes)
    assert (("b",), ("a", "c")) in outcomes
    assert not any("c" in y and "a" in x for x, y in outcomes)


def test_replacing_a_file_is_atomic_and_durable_on_return() -> None:
    async def script(disk: Disk) -> None:
        await disk.replace_file("/a", b"old")
        await asyncio.sleep(9.9965)
        await disk.replace_file("/a", b"new")

    async def main(loop: SimulatedLoop, volume: VirtualDisk) -> bytes | None:
        return (await crash(loop, volume, script)).read_file("/a")

    outcomes = {simulate(seed, main) for seed in range(300)}
    assert outcomes == {b"old", b"new"}


def test_creating_a_file_is_atomic_and_durable_on_return() -> None:
    ended: list[bool] = []

    async def script(disk: Disk) -> None:
        await asyncio.sleep(9.9965)
        await disk.create_file("/a", b"whole")
        ended.append(True)
        await asyncio.sleep(1000)

    async def main(loop: SimulatedLoop, volume: VirtualDisk) -> tuple[bool, bytes | None]:
        ended.clear()
        content = (await crash(loop, volume, script)).read_file("/a")
        return bool(ended), content

    assert {simulate(seed, main) for seed in range(300)} == {(False, None), (False, b"whole"), (True, b"whole")}


def test_a_killed_process_loses_nothing_and_can_do_nothing_more() -> None:
    async def main(loop: SimulatedLoop, volume: VirtualDisk) -> None:
        process = Process("killed")
        disk = volume.of(process, loop)
        file = disk.open("/a", create=True)
        file.append([b"not flushed"])
        loop.kill(process)
        volume.process_killed(power_lost=False)
        assert volume.of(Process("next"), loop).read_file("/a") == b"not flushed"
        with pytest.raises(OSError, match="dead"):
            file.append([b"more"])
        with pytest.raises(OSError, match="dead"):
            disk.remove("/a")

    simulate(1, main)


def test_after_a_failed_flush_nothing_appended_since_the_last_good_one_is_safe() -> None:
    async def script(disk: Disk) -> None:
        file = disk.open("/a", create=True)
        await disk.flush_directory("/")
        file.append([b"good|"])
        await file.flush()
        file.append([b"bad|"])
        disk.volume.weather.flush_failure_probability = 1.0  # type: ignore[attr-defined]
        with pytest.raises(OSError, match="Input/output"):
            await file.flush()
        disk.volume.weather.flush_failure_probability = 0.0  # type: ignore[attr-defined]
        await file.flush()
        await asyncio.sleep(1000)

    async def main(loop: SimulatedLoop, volume: VirtualDisk) -> bytes | None:
        return (await crash(loop, volume, script)).read_file("/a")

    assert {simulate(seed, main) for seed in range(20)} == {b"good|"}


def test_what_is_read_back_after_a_failed_flush_is_what_the_device_holds() -> None:
    async def script(disk: Disk) -> None:
        file = disk.open("/a", create=True)
        await disk.flush_directory("/")
        file.append([b"good|"])
        await file.flush()
        file.append([b"bad|"])
        disk.volume.weather.flush_failure_probability = 1.0  # type: ignore[attr-defined]
        with pytest.raises(OSError, match="Input/output"):
            await file.flush()
        disk.volume.weather.flush_failure_probability = 0.0  # type: ignore[attr-defined]
        again = disk.open("/a")
        assert again.read(0, 100) == b"good|bad|", "the page cache still shows it"
        await again.read_back()
        assert again.read(0, 100) == b"good|"
        again.append([b"new|"])
        await again.flush()
        await asyncio.sleep(1000)

    async def main(loop: SimulatedLoop, volume: VirtualDisk) -> bytes | None:
        return (await crash(loop, volume, script)).read_file("/a")

    assert {simulate(seed, main) for seed in range(20)} == {b"good|new|"}


def test_a_full_disk_refuses_an_append_whole() -> None:
    async def main(loop: SimulatedLoop, volume: VirtualDisk) -> None:
        volume.total_bytes = 100
        disk = volume.of(loop.world, loop)
        file = disk.open("/a", create=True)
        file.append([bytes(90)])
        with pytest.raises(OSError, match="No space left") as caught:
            file.append([bytes(11)])
        assert caught.value.errno == errno.ENOSPC
        assert file.size_bytes == 90
        file.truncate(10)
        file.append([bytes(11)])

    simulate(1, main)


def test_pages_of_what_was_not_flushed_survive_in_any_order() -> None:
    flushed, unflushed = b"f" * 700, b"u" * 2000
    kept = set()

    async def script(disk: Disk) -> None:
        disk.volume.weather.page_bytes = 512  # type: ignore[attr-defined]
        file = disk.open("/a", create=True)
        file.append([flushed])
        await file.flush()
        await disk.flush_directory("/")
        for at in range(0, len(unflushed), 100):
            file.append([unflushed[at : at + 100]])
        await asyncio.sleep(1000)

    async def main(loop: SimulatedLoop, volume: VirtualDisk) -> None:
        content = (await crash(loop, volume, script)).read_file("/a")
        assert content is not None
        assert content.startswith(flushed)
        assert len(content) <= len(flushed) + len(unflushed)
        pages = [content[max(at, 700) : at + 512] for at in range(512, len(content), 512)]
        kept.add(tuple(bool(page) and page == b"u" * len(page) for page in pages))

    for seed in range(300):
        simulate(seed, main)
    assert (False,) in kept, "nothing"
    assert (True,) * 5 in kept, "everything"
    assert (True, False, True) in {pages[:3] for pages in kept}, "a hole, and what came after it"
    assert (False, True) in {pages[:2] for pages in kept}


def test_a_page_that_was_lost_may_look_like_batches_but_passes_for_none() -> None:
    """Neither as a whole nor behind the first bytes of the batch that was there. Seed 532."""
    written = [batches.encode(batches.make_batch([Record(at, 0, b"k%d" % at, bytes(20))])) for at in range(60)]
    looked_alike = 0
    for seed in range(300):
        inode = Inode(b"".join(written[:30]))
        inode.append(b"".join(written[30:]), 1)
        inode.lose_power(random.Random(seed), page_bytes=512)
        content, at = bytes(inode.content), 0
        for batch in written:
            if not content[at:].startswith(batch):
                with pytest.raises((CorruptLogError, UnsupportedFormatError)):
                    batches.decode(content, at)
                looked_alike += b"k1" in content[at:]
                break
            at += len(batch)
    assert looked_alike


def test_only_the_place_that_is_in_trouble_is_full_or_cannot_be_read() -> None:
    async def main(loop: SimulatedLoop, volume: VirtualDisk) -> None:
        disk = volume.of(loop.world, loop)
        for directory in ("/data/t-0/staged-1", "/data/t-1"):
            disk.make_directory(directory)
        files = [disk.open(f"/data/{name}", create=True) for name in ("t-0/1.log", "t-0/1.index", "t-1/1.log")]
        for file in files:
            file.append([b"before"])

        def troubled(number: int, attempt: Callable[[Any], Any]) -> list[int]:
            met = []
            for index, file in enumerate(files):
                try:
                    attempt(file)
                except OSError as error:
                    met.append((index, error.errno))
            return [index for index, met_number in met if met_number == number]

        volume.troubles = [Trouble(errno.ENOSPC, "/data/t-0", ".log")]
        assert troubled(errno.ENOSPC, lambda file: file.append([b"x"])) == [0]
        assert troubled(errno.EIO, lambda file: file.read(0, 1)) == []
        with pytest.raises(OSError, match="No space"):
            disk.open("/data/t-0/2.log", create=True)
        await disk.replace_file("/data/t-0/checkpoint", b"x")
        volume.troubles = [Trouble(errno.ENOSPC, "/data/t-0")]
        with pytest.raises(OSError, match="No space"):
            await disk.replace_file("/data/t-0/checkpoint", b"y")
        assert disk.read_file("/data/t-0/checkpoint") == b"x"
        volume.troubles = [Trouble(errno.ENOSPC, "/data/t-0", "staged-")]
        assert troubled(errno.ENOSPC, lambda file: file.append([b"x"])) == []
        with pytest.raises(OSError, match="No space"):
            disk.open("/data/t-0/staged-1/1.log", create=True)
        volume.troubles = [Trouble(errno.EIO, "/data/t-1")]
        assert troubled(errno.EIO, lambda file: file.read(0, 1)) == [2]
        with pytest.raises(OSError, match="Input/output"):
            disk.read_file("/data/t-1/1.log")
        assert troubled(errno.EIO, lambda file: file.append([b"x"])) == []
        volume.troubles = []
        assert troubled(errno.EIO, lambda file: file.read(0, 1)) == []

    simulate(1, main)


def test_a_flipped_bit_is_read_by_everybody_and_is_not_what_was_written() -> None:
    async def main(loop: SimulatedLoop, volume: VirtualDisk) -> None:
        disk = volume.of(loop.world, loop)
        file = disk.open("/a", create=True)
        file.append([b"0123456789"])
        (_, inode), *_ = volume.files("/")
        inode.flipped = 5, 1
        assert disk.read_file("/a") == b"0123446789"
        assert file.read(0, 5) == b"01234"
        assert file.read(5, 2) == b"46"
        assert file.read(6, 9) == b"6789"
        assert inode.content == b"0123456789"

    simulate(1, main)


def test_an_image_is_what_the_disk_held_and_both_go_on_by_themselves() -> None:
    rng = random.Random(1)
    loop = new_loop(rng)
    volume = VirtualDisk(rng)
    disk = volume.of(loop.world, loop)
    disk.make_directory("/data/deep")
    disk.open("/data/deep/a", create=True).append([b"then"])
    image = volume.image().of(loop.world, loop)
    disk.open("/data/deep/a").append([b" and now"])
    disk.remove("/data/deep/nothing")
    disk.open("/data/b", create=True)
    assert image.read_file("/data/deep/a") == b"then"
    assert image.list("/data") == ["deep"]
    image.remove_tree("/data")
    assert disk.read_file("/data/deep/a") == b"then and now"
    loop.close()
