"""Processes that go on by name in directories that they have deleted."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sexton.simulate.beliefs import check_strays
from sexton.simulate.disk import Stray, VirtualDisk
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.loop import Process, new_loop


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize("is_another_process", [False, True])
def test_a_process_that_looks_for_a_file_where_it_has_left_is_noted(
    is_made_again: bool, is_another_process: bool
) -> None:
    loop = new_loop(random.Random(1))
    volume = VirtualDisk(random.Random(1))
    disk, other = volume.of(Process("broker"), loop), volume.of(Process("compactor"), loop)
    disk.make_directory("/data/t-0")
    disk.open("/data/t-0/0.log", create=True)
    disk.rename("/data/t-0", "/data/t-0-delete")
    if is_made_again:
        disk.make_directory("/data/t-0")
    with pytest.raises(FileNotFoundError):
        (other if is_another_process else disk).open("/data/t-0/0.log")
    assert bool(volume.strays) == (not is_made_again and not is_another_process)
    loop.close()


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_file_that_ends_up_in_another_directory_than_it_was_meant_for_is_noted(is_made_again: bool) -> None:
    loop = new_loop(random.Random(1))
    volume = VirtualDisk(random.Random(1))
    disk = volume.of(loop.world, loop)

    async def main() -> None:
        disk.make_directory("/data/t-0")
        await disk.replace_file("/data/t-0/mark", b"one")
        assert not volume.strays
        writing = asyncio.ensure_future(disk.replace_file("/data/t-0/mark", b"two"))
        await asyncio.sleep(0)
        disk.rename("/data/t-0", "/data/t-0-delete")
        if is_made_again:
            disk.make_directory("/data/t-0")
            await writing
            assert disk.read_file("/data/t-0/mark") == b"two"
        else:
            with pytest.raises(FileNotFoundError):
                await writing
        assert [stray.path for stray in volume.strays] == ["/data/t-0/mark"]

    loop.run_until_complete(main())
    loop.close()


@pytest.mark.parametrize(("name", "is_broken"), [("0.log", True), ("compaction-leftovers", False)])
def test_one_who_goes_on_in_a_directory_that_he_has_deleted_breaks_rule_11(name: str, is_broken: bool) -> None:
    """But for a note that says which log it is about."""
    volume = VirtualDisk(random.Random(1))
    node = cast(Any, SimpleNamespace(name="broker-1", volume=volume))
    check_strays(node)
    volume.strays.append(Stray("broker-1.1", f"/data/t-0/{name}"))
    if is_broken:
        with pytest.raises(SimulationFailure, match=r"rule 11: broker-1.1 goes on with /data/t-0/0.log"):
            check_strays(node)
    else:
        check_strays(node)
