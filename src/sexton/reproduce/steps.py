"""For whoever goes through a script step by step: what comes next, what to look at before and after it, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sexton.reproduce.script import Kind
from sexton.reproduce.world import AWAY, FIRST_LEADER


@dataclass(frozen=True, slots=True)
class Place:
    """Where a topic can be looked at from outside: by its brokers, and in their folders."""

    bootstrap: str
    folders: Mapping[int, str]
    """Directory of the topic's one partition, by broker."""


LOOK_AT: Final[Mapping[Kind, str]] = {
    Kind.PRODUCE: "the record is in the logs of all brokers that are up",
    Kind.DELETE: f"broker {FIRST_LEADER} gets the tombstone; broker {AWAY}, if it is away, does not",
    Kind.BEGIN: "nothing yet: a transaction begins with its first record",
    Kind.COMMIT: f"broker {FIRST_LEADER} gets the COMMIT marker; broker {AWAY}, if it is away, does not",
    Kind.ABORT: f"broker {FIRST_LEADER} gets the ABORT marker; broker {AWAY}, if it is away, does not",
    Kind.KILL: f"broker {AWAY} leaves the in-sync replicas; its folder stays as it is now",
    Kind.COMPACTED: f"the log of broker {FIRST_LEADER} shrinks, pass by pass; that of broker {AWAY} does not",
    Kind.RETURN: f"broker {AWAY} fetches what it lacks from its old end on, and joins the in-sync replicas",
    Kind.LEAD: f"broker {AWAY} becomes the leader, with what it has",
    Kind.READ: "what a consumer gets, and what is in the leader's log",
}
"""What the act changes."""


def commands(kind: Kind, topic: str, place: Place) -> Sequence[str]:
    """To be typed into another terminal, before the act and after it."""
    where = f"--bootstrap-server {place.bootstrap}"
    describe = f"sexton topic describe {topic} {where}"
    consume = f"sexton consume {topic} --from-beginning --exit-at-end --key-separator = {where}"
    dumps = [f"sexton log dump {place.folders[broker]}" for broker in (FIRST_LEADER, AWAY) if broker in place.folders]
    match kind:
        case Kind.START:
            return ()
        case Kind.KILL | Kind.RETURN | Kind.LEAD:
            return (describe, *dumps)
        case Kind.READ:
            return (consume, *dumps)
        case _:
            return dumps
