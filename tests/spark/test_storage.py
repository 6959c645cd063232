"""What a compaction stages belongs to whoever owns the log, whoever ran it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sexton.compaction.chunking import Extent, Output
from sexton.compaction.contract import NewSegment
from sexton.errors import EnvironmentFailure
from sexton.spark.storage import Folder
from tests.ownership import Given, theirs

OLD = "00000000000000000000.log"


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / OLD
    path.write_bytes(bytes(100))
    path.chmod(0o640)
    return path


def names_of(given: Given) -> list[str]:
    assert all((uid, gid) == (12345, 54321) for _, uid, gid in given)
    return [path.name.partition(".part-")[0] for path, _, _ in given]


def test_parts_segments_and_indexes_get_the_owner_and_mode_of_the_log(
    segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = theirs(segment, monkeypatch)
    folder = Folder(str(segment.parent), like=str(segment))
    part = folder.new_part(0, None)
    part.append(0, memoryview(b"x" * 50))
    part.close()
    extents = (Extent(part.path, 0, 50), Extent(str(segment), 0, 20))
    new = Path(folder.write_segment(Output(NewSegment(0, 9, (0,)), extents, False, 70)))
    folder.write_index("00000000000000000000.index.cleaned", b"index")
    assert names_of(given) == [OLD, OLD, "00000000000000000000.index.cleaned"]
    made = [Path(part.path), new, segment.parent / "00000000000000000000.index.cleaned"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o640] * 3


def test_who_may_not_give_files_away_is_told_to_run_as_their_owner(
    segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs(segment, monkeypatch, refuses=True)
    with pytest.raises(EnvironmentFailure, match="Run as the user whose files these are"):
        Folder(str(segment.parent), like=str(segment)).write_index("00000000000000000000.index.cleaned", b"index")


def test_what_is_staged_for_a_broker_is_as_the_broker_made_the_directory(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    staging.chmod(0o750)
    Folder(str(staging)).write_index("00000000000000000000.index.cleaned", b"index")
    assert stat.S_IMODE((staging / "00000000000000000000.index.cleaned").stat().st_mode) == 0o640
