"""One object, from its id to its end: PUTs, DELETEs and commits that arrive late or whose answers are lost, an uploader
that is paused, dead or only suspected to be, a reader, the collector, the scrub (docs/rules.md, "Why no live object is
ever deleted").

An uploader that does nothing for a while is one that is paused: every action may come at any time, or never.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.model.errors import Violation

GRACE = 2
FLIGHTS_MAX = 2
"""PUTs, and DELETEs, on their way at once."""

NONE, PENDING, LIVE, GARBAGE, GONE = "none", "pending", "live", "garbage", "gone"
NEW, READY, SENT, STORED, WAITING, DONE, DEAD = "new", "ready", "sent", "stored", "waiting", "done", "dead"


class Rules(NamedTuple):
    registered_first: bool = True
    """C1. Without it: what has no row, and is old, is deleted."""
    unknown_is_asked_again: bool = True
    """C10. Without it: an uploader that got no answer deletes its object."""
    commit_needs_pending: bool = True
    """C2, C3."""
    grace: bool = True
    """C4."""
    scrub_lists_first: bool = True
    """C4."""
    ids_used_once: bool = True
    """C1."""


class State(NamedTuple):
    row: str = NONE
    is_stored: bool = False
    uploader: str = NEW
    has_lease: bool = True
    puts: int = 0
    deletes: int = 0
    commits: int = 0
    garbage_rounds: int = 0
    reader: int = -1
    """Rounds since it looked the object up; -1: it did not."""
    scrub: str = "idle"
    lives: int = 0


class Collector:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def start(self) -> State:
        return State()

    def canonical(self, state: State) -> State:
        return state

    def show(self, state: Any) -> str:
        return str(State(*state))

    def actions(self, state: Any) -> Iterator[tuple[str]]:
        return ((name,) for name in ACTIONS)

    def apply(self, state: Any, action: tuple[str]) -> State | None:
        before = State(*state)
        after: State | None = getattr(self, action[0])(before)
        if after is None or after == before:
            return None
        if after.row == LIVE and not after.is_stored:
            raise Violation("live object deleted", f"after {action[0]}: {after}")
        return after

    # The uploader

    def register(self, s: State) -> State | None:
        if s.uploader != NEW or not s.has_lease:
            return None
        return s._replace(uploader=READY, row=PENDING if self.rules.registered_first else s.row)

    def send_put(self, s: State) -> State | None:
        if s.uploader not in (READY, SENT) or s.puts == FLIGHTS_MAX:
            return None
        return s._replace(uploader=SENT, puts=s.puts + 1)

    def put_arrives(self, s: State) -> State | None:
        return s._replace(puts=s.puts - 1, is_stored=True) if s.puts else None

    def put_is_answered(self, s: State) -> State | None:
        stored = self.put_arrives(s)
        return stored._replace(uploader=STORED) if stored and s.uploader == SENT else None

    def send_commit(self, s: State) -> State | None:
        return s._replace(uploader=WAITING, commits=1) if s.uploader in (STORED, WAITING) else None

    def commit_arrives(self, s: State) -> State | None:
        if not s.commits:
            return None
        fits = s.row == PENDING if self.rules.registered_first else s.row == NONE
        if fits or (not self.rules.commit_needs_pending and s.row in (GARBAGE, GONE)):
            return s._replace(commits=0, row=LIVE, lives=1)
        return s._replace(commits=0)

    def commit_is_answered(self, s: State) -> State | None:
        after = self.commit_arrives(s)
        return after._replace(uploader=DONE) if after and s.uploader == WAITING else None

    def clean_up(self, s: State) -> State | None:
        """It got no answer, and does not know whether its commit is still on its way."""
        if self.rules.unknown_is_asked_again or s.uploader != WAITING or s.deletes == FLIGHTS_MAX:
            return None
        return s._replace(uploader=DONE, deletes=s.deletes + 1)

    def use_id_again(self, s: State) -> State | None:
        if self.rules.ids_used_once or s.row not in (GARBAGE, GONE) or s.lives or s.uploader in (NEW, DEAD):
            return None
        return s._replace(row=PENDING, uploader=READY, has_lease=True, garbage_rounds=0, lives=0)

    def die(self, s: State) -> State | None:
        return s._replace(uploader=DEAD) if s.uploader != DEAD else None

    # The metastore

    def lose_lease(self, s: State) -> State | None:
        return s._replace(has_lease=False)

    def expire(self, s: State) -> State | None:
        return s._replace(row=GARBAGE) if s.row == PENDING and not s.has_lease else None

    def unreference(self, s: State) -> State | None:
        """The last extent goes."""
        return s._replace(row=GARBAGE) if s.row == LIVE else None

    # The collector

    def end_round(self, s: State) -> State | None:
        garbage = min(s.garbage_rounds + 1, GRACE) if s.row == GARBAGE else s.garbage_rounds
        reader = s.reader + 1 if 0 <= s.reader < GRACE else s.reader
        return s._replace(garbage_rounds=garbage, reader=reader)

    def collect(self, s: State) -> State | None:
        is_due = s.row == GARBAGE and (s.garbage_rounds >= GRACE or not self.rules.grace)
        is_old = not self.rules.registered_first and s.row == NONE and s.is_stored
        return s._replace(deletes=s.deletes + 1) if (is_due or is_old) and s.deletes < FLIGHTS_MAX else None

    def delete_arrives(self, s: State) -> State | None:
        return s._replace(deletes=s.deletes - 1, is_stored=False) if s.deletes else None

    def delete_is_answered(self, s: State) -> State | None:
        after = self.delete_arrives(s)
        return after._replace(row=GONE) if after and s.row == GARBAGE else None

    def scrub_first(self, s: State) -> State | None:
        if s.scrub != "idle":
            return None
        seen = s.is_stored if self.rules.scrub_lists_first else s.row in (NONE, GONE)
        return s._replace(scrub="seen") if seen else None

    def scrub_second(self, s: State) -> State | None:
        if s.scrub != "seen":
            return None
        is_nobodys = s.row in (NONE, GONE) if self.rules.scrub_lists_first else s.is_stored
        deletes = min(s.deletes + is_nobodys, FLIGHTS_MAX)
        return s._replace(scrub="idle", deletes=deletes)

    # A reader

    def look_up(self, s: State) -> State | None:
        return s._replace(reader=0) if s.row == LIVE else None

    def read(self, s: State) -> State | None:
        if 0 <= s.reader < GRACE - 1 and not s.is_stored:
            raise Violation("a reader finds nothing", str(s))
        return s._replace(reader=-1) if s.reader >= 0 else None

    # Nothing leaks

    def bring_to_rest(self, state: Any) -> State:
        """The uploader is dead, all that was sent arrives, and nothing refers to the object any more."""
        s = State(*state)._replace(uploader=DEAD, has_lease=False, reader=-1)
        order = ("put_arrives", "commit_arrives", "unreference", "expire", "end_round", "collect", "delete_is_answered")
        for _ in range(20):
            for name in (*order, "delete_arrives", "scrub_second", "scrub_first", "scrub_second", "delete_arrives"):
                s = getattr(self, name)(s) or s
        if s.is_stored or s.row in (PENDING, LIVE, GARBAGE):
            raise Violation("left behind", str(s))
        return s


ACTIONS = (
    *("register", "send_put", "put_arrives", "put_is_answered", "send_commit", "commit_arrives", "commit_is_answered"),
    *("clean_up", "use_id_again", "die", "lose_lease", "expire", "unreference", "end_round", "collect"),
    *("delete_arrives", "delete_is_answered", "scrub_first", "scrub_second", "look_up", "read"),
)

TRAPS = {
    "registered_first": "live object deleted",
    "unknown_is_asked_again": "live object deleted",
    "commit_needs_pending": "live object deleted",
    "grace": "a reader finds nothing",
    "scrub_lists_first": "live object deleted",
    "ids_used_once": "live object deleted",
}
"""By rule: what is found without it."""
