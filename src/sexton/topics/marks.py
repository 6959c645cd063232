"""How far a copy has come, where every Kafka user would look for it: offsets of a consumer group.

The group of a target has an offset for each partition of the source (copied up to there) and for each of the target
(where it ended then), and says as their metadata whether a round is under way. They are committed before each round and
after it, in one request. So a run knows what an earlier one left:

*copied*, and the target ends where the group says: it goes on from there.
*copied*, and it ends further on: somebody has written to it since, perhaps because all has moved there. Refused.
*copying*: a round was broken off. It is repeated on top, which a compacted topic does not mind, for the newest record
of each key is then written after all that was left.

Pure, but for reading and writing the offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from sexton.client.client import Client
from sexton.client.groups import commit_body, commit_offsets, fetch_committed
from sexton.errors import SextonError

COPYING: Final = "copying"
COPIED: Final = "copied"

Offsets = Mapping[int, int]
"""By partition."""


class TargetInUseError(SextonError):
    """A copy would mix with what is there."""

    exit_code: ClassVar[int] = 65


@dataclass(frozen=True, slots=True)
class Marks:
    source: Offsets
    target: Offsets
    is_under_way: bool = False
    """A round has begun, and has not ended."""


@dataclass(frozen=True, slots=True)
class Start:
    from_offsets: Offsets
    """Of the source. Those that are missing begin at the log start."""
    note: str = ""


def group_of(target: str) -> str:
    return f"sexton-repartition.{target}"


async def read_marks(client: Client, source: str, target: str) -> Marks:
    found = await fetch_committed(client, group_of(target))
    return Marks(
        {place[1]: offset for place, (offset, _) in found.items() if place[0] == source},
        {place[1]: offset for place, (offset, _) in found.items() if place[0] == target},
        any(metadata == COPYING for _, metadata in found.values()),
    )


async def write_marks(client: Client, source: str, target: str, marks: Marks) -> None:
    offsets = {(source, number): offset for number, offset in marks.source.items()}
    offsets |= {(target, number): offset for number, offset in marks.target.items()}
    metadata = COPYING if marks.is_under_way else COPIED
    await commit_offsets(client, group_of(target), commit_body(group_of(target), offsets, metadata=metadata))


def start_of(
    target: str,
    marks: Marks,
    target_ends: Offsets,
    source_ends: Offsets,
    *,
    may_repeat: bool,
    takes_what_is_there: bool,
) -> Start:
    """Where to begin. Raises TargetInUseError."""
    remedy = f"Delete it (sexton topic delete {target}) and run this again, or name another"
    if not any(target_ends.values()):
        return Start({})
    if set(marks.target) != set(target_ends) or not marks.source:
        if takes_what_is_there:
            return Start({}, "what was in the target before stays, below what is copied")
        raise TargetInUseError(
            "the topic has records, and they are no earlier copy of this source",
            target,
            f"{remedy}; --even-if-not-empty copies on top of them",
        )
    if any(end < marks.target[number] for number, end in target_ends.items()):
        raise TargetInUseError("the topic was made anew since the copy before, and written to", target, remedy)
    if any(source_ends.get(number, 0) < offset for number, offset in marks.source.items()):
        raise TargetInUseError("the source was made anew since the copy before", target, remedy)
    if all(end == marks.target[number] for number, end in target_ends.items()):
        return Start(marks.source, "an earlier copy is continued" if any(marks.target.values()) else "")
    if not marks.is_under_way:
        if takes_what_is_there:
            return Start(
                marks.source, "somebody has written to the target since; what came to the source is copied on top"
            )
        raise TargetInUseError(
            "somebody has written to it since the copy before: what is newer there would be covered",
            target,
            "Has everything moved there already? --even-if-not-empty copies what has come to the source since on top",
        )
    if may_repeat:
        return Start(marks.source, "an earlier run was broken off: what it was at is copied once more, on top")
    raise TargetInUseError(
        "an earlier run was broken off, and to copy once more would double records: the topic is not compacted",
        target,
        remedy,
    )
