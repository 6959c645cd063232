"""Files that are damaged on purpose: how, and what a broker that comes back with them makes of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sexton.verify.faults import damage
from sexton.verify.faults.damage import cut, flip, remove

CONTENT = bytes(range(200))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "t-0" / "00000000000000000000.log"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("seed", range(20))
def test_bits_flip_where_it_is_said_and_nowhere_else(path: Path, seed: int) -> None:
    told = flip(path, random.Random(seed))
    changed = [at for at, (one, other) in enumerate(zip(CONTENT, path.read_bytes(), strict=True)) if one != other]
    assert changed
    assert set(changed) == {int(each) for each in told.removeprefix("bits flipped in bytes ").split(", ")}


@pytest.mark.parametrize("seed", range(20))
def test_a_tail_that_is_cut_off_is_at_least_a_byte(path: Path, seed: int) -> None:
    told = cut(path, random.Random(seed))
    left = path.read_bytes()
    assert CONTENT.startswith(left)
    assert len(left) < len(CONTENT)
    assert told == f"cut to {len(left)} of 200 bytes"


def test_a_file_that_is_removed_is_gone(path: Path) -> None:
    assert remove(path, random.Random(1)) == "removed"
    assert not path.exists()


def test_some_files_of_the_logs_are_damaged_and_named(tmp_path: Path, path: Path) -> None:
    (tmp_path / "t-1").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "t-1" / name).write_bytes(CONTENT)
    (tmp_path / "t-1" / "empty").write_bytes(b"")
    done = damage.damage([tmp_path / "t-0", tmp_path / "t-1"], random.Random(3))
    whole = {
        f"{each.parent.name}/{each.name}" for each in tmp_path.glob("t-*/*") if each.read_bytes() in (CONTENT, b"")
    }
    assert done
    assert done.keys() | whole == {"t-0/00000000000000000000.log", "t-1/a", "t-1/b", "t-1/c", "t-1/empty"}
    assert not done.keys() & whole


def test_the_same_choice_damages_the_same_files(tmp_path: Path) -> None:
    found = []
    for run in ("one", "two"):
        directory = tmp_path / run / "t-0"
        directory.mkdir(parents=True)
        for name in ("a", "b", "c"):
            (directory / name).write_bytes(CONTENT)
        found.append(damage.damage([directory], random.Random(7)))
    assert found[0] == found[1]


def test_where_there_is_nothing_nothing_is_damaged(tmp_path: Path) -> None:
    assert damage.damage([tmp_path], random.Random(1)) == {}
