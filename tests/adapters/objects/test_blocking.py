"""Stores as Spark's tasks use them: ranges exactly or an error, objects part by part, there when finished and not
before."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
from pathlib import Path

import pytest

from sexton.adapters.objects import blocking, open_store
from sexton.adapters.objects.blocking import PART_BYTES, BlockingStore
from sexton.errors import DamagedObjectError
from sexton.harness.versitygw import VersityGateway
from sexton.ports.object_names import MARKER_KEY
from sexton.ports.objects import ObjectMissingError, StoreUnavailableError

KEY = "cluster/l1/ab/object"


def folder_store(path: Path) -> BlockingStore:
    """Of a folder that is a store."""
    (path / MARKER_KEY).write_bytes(b"{}")
    return BlockingStore(f"file://{path}")


def files_in(path: Path) -> list[str]:
    return [file.name for file in path.rglob("*") if file.is_file() and file.name != MARKER_KEY]


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlockingStore:
    """As it arrives at a task."""
    url = folder_store(tmp_path).url
    if request.param == "s3":
        name: str = request.getfixturevalue("bucket")
        gateway: VersityGateway = request.getfixturevalue("s3")
        url = gateway.url(name, "some/prefix")
    sent: BlockingStore = pickle.loads(pickle.dumps(BlockingStore(url)))
    return sent


def is_there(store: BlockingStore) -> bool:
    try:
        return store.size_bytes(KEY) >= 0
    except ObjectMissingError:
        return False


def test_a_large_object_is_there_when_its_upload_is_finished_and_not_before(store: BlockingStore) -> None:
    rng = random.Random(1)
    pieces = [rng.randbytes(PART_BYTES // 3) for _ in range(7)]  # more than two parts, no piece a part
    upload = store.upload(KEY)
    for piece in pieces:
        upload.write(memoryview(piece))
        assert not is_there(store)
    upload.finish()
    upload.abort()
    whole = b"".join(pieces)
    assert store.size_bytes(KEY) == len(whole)
    assert bytes(store.read(KEY, 0, len(whole))) == whole
    assert bytes(store.read(KEY, PART_BYTES - 5, 10)) == whole[PART_BYTES - 5 : PART_BYTES + 5]

    async def read() -> bytes:
        other = open_store(store.url)
        try:
            return bytes(await other.get(KEY, 3, 100))
        finally:
            await other.close()

    assert asyncio.run(read()) == whole[3:103], "brokers see the same"


def test_an_upload_that_was_given_up_is_no_object(store: BlockingStore) -> None:
    upload = store.upload(KEY)
    upload.write(b"x" * (PART_BYTES + 1))
    upload.abort()
    assert not is_there(store)


def test_what_is_missing_or_short_is_an_error_never_fewer_bytes(store: BlockingStore) -> None:
    """T9, T21."""
    with pytest.raises(ObjectMissingError):
        store.read(KEY, 0, 1)
    upload = store.upload(KEY)
    upload.write(b"0123456789")
    upload.finish()
    assert bytes(store.read(KEY, 8, 2)) == b"89"
    for start, size_bytes in ((8, 3), (10, 1), (50, 5)):
        with pytest.raises(DamagedObjectError):
            store.read(KEY, start, size_bytes)


def test_the_same_object_put_twice_is_one_object(store: BlockingStore) -> None:
    for _ in range(2):
        upload = store.upload(KEY)
        upload.write(b"same")
        upload.finish()
    assert bytes(store.read(KEY, 0, 4)) == b"same"


def test_a_folder_that_is_not_there_is_not_filled(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="not there"):
        BlockingStore(f"file://{tmp_path}/unmounted").upload(KEY)
    assert not (tmp_path / "unmounted").exists()


def test_a_disk_that_is_unmounted_before_or_during_an_upload_fails_it(tmp_path: Path) -> None:
    """It leaves an empty folder, and what is written there is on another disk."""
    store = folder_store(tmp_path)
    upload = store.upload(KEY)
    upload.write(b"x")
    (tmp_path / MARKER_KEY).unlink()
    with pytest.raises(StoreUnavailableError, match="is its disk mounted"):
        upload.finish()
    with pytest.raises(StoreUnavailableError, match="is its disk mounted"):
        store.upload(KEY)


def test_a_directory_that_another_task_made_is_flushed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one may have died before it did: after a power loss a committed object would be gone with its directory."""
    flushed: list[str] = []
    flush = blocking.flush_directory

    def noted(directory: str) -> None:
        flushed.append(os.path.relpath(directory, tmp_path))
        flush(directory)

    monkeypatch.setattr(blocking, "flush_directory", noted)
    (tmp_path / KEY).parent.mkdir(parents=True)
    store = folder_store(tmp_path)
    for name in ("one", "other"):
        upload = store.upload(f"{KEY}-{name}")
        assert set(flushed) >= {".", "cluster", "cluster/l1"}
        upload.write(b"x")
        upload.finish()
    assert sorted(flushed) == [".", "cluster", "cluster/l1", "cluster/l1/ab", "cluster/l1/ab"], (
        "once, but for the names"
    )
    (tmp_path / f"{KEY}-one").unlink()
    (tmp_path / f"{KEY}-other").unlink()
    (tmp_path / KEY).parent.rmdir()
    upload = store.upload(KEY)
    upload.write(b"x")
    upload.finish()
    assert is_there(store), "a directory that somebody removed is made again"


def test_a_crash_leaves_no_file_with_a_name(tmp_path: Path) -> None:
    upload = folder_store(tmp_path).upload(KEY)
    upload.write(b"half")
    assert files_in(tmp_path) == []
    upload.abort()


def test_a_file_system_without_unnamed_files_gets_temporary_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    store = folder_store(tmp_path)
    upload = store.upload(KEY)
    upload.write(b"whole")
    upload.finish()
    assert bytes(store.read(KEY, 0, 5)) == b"whole"
    assert files_in(tmp_path) == ["object"]


def test_a_store_that_is_away_is_asked_a_few_times_and_then_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "pause_ms", lambda *arguments: 0)
    asked: list[int] = []

    def away() -> int:
        asked.append(1)
        raise StoreUnavailableError("away", "here")

    with pytest.raises(StoreUnavailableError):
        blocking.patiently(away)
    assert len(asked) == blocking.ATTEMPTS_MAX
