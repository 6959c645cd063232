"""Which brokers may still be serving: leases, measured by each broker's own monotonic clock (see
`sexton.ports.metastore`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from sexton.ports.metastore import LEASE_MARGIN, BrokerRow

Id = TypeVar("Id")
Count = TypeVar("Count")

BLIND_SHARE = 0.5
"""A watcher that has not looked for longer than this share of a lease starts to watch it from the beginning. No broker
could renew while the metastore was unreachable, and the first watcher to reach it again must not take that for the
death of all others (nor must a watcher that was itself paused). A live broker renews soon after the metastore's return,
well before a lease has passed."""

STALLED_SHARE = 0.8
"""A watcher whose own lease was not renewed for longer than this share of it learns nothing by looking: the metastore
can be read, but perhaps not be written (a locked database), and then nobody can renew. It starts anew when its own
lease is renewed. With the interval of renewals this must stay below a lease and its margin."""

INTERRUPTIONS_MAX: Final = 3
"""So often a watch starts anew although the watcher's own lease was renewed meanwhile. A metastore that was away for
all is one interruption, however long; what is interrupted again and again is a watcher that is slow itself (renewals or
looks that take most of a lease), and it would never see that another has died. A live broker would have to be unlucky
every time that the watcher was not."""

LOOKS_MAX = 1000
"""Number of looks remembered. A lease spans some dozens; a watcher that looks more often than this allows never sees a
lease expire."""


class OwnLease:
    """Until when this broker may serve. The lease counts from the moment *before* a renewal was sent: no watcher can
    have seen the renewal earlier."""

    def __init__(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self._sent_ms: int | None = None

    def renewed(self, sent_ms: int) -> None:
        """The metastore has accepted the renewal (or registration) sent at `sent_ms`. Responses may overtake each
        other."""
        if self._sent_ms is None or sent_ms > self._sent_ms:
            self._sent_ms = sent_ms

    def lost(self) -> None:
        """Fenced, or not registered: not valid until the next renewal."""
        self._sent_ms = None

    def is_valid(self, now_ms: int) -> bool:
        return self._sent_ms is not None and now_ms - self._sent_ms < self.lease_ms


@dataclass(frozen=True, slots=True)
class ExpiredLease:
    """What `fence_broker` compares: a renewal in the meantime makes it fail."""

    broker_id: int
    epoch: int
    renewals_count: int


class Look(NamedTuple):
    at_ms: int
    own_was_renewed: bool
    """The watcher's own lease was renewed since the look before: the metastore could be written."""
    ends_stall: bool
    """And had not been for so long that others may not have been able to renew theirs, either."""


class CountWatch(Generic[Id, Count]):
    """Watches the renewal counts of brokers or of compactors. A lease has expired when its count was seen to stand
    still for `lease_ms` times LEASE_MARGIN."""

    def __init__(self, own: Id | None = None, own_lease_ms: int = 0) -> None:
        """`own` is the watcher's own lease, if it has one among those that it watches."""
        self._own = own
        self._own_lease_ms = own_lease_ms
        self._looked_ms: int | None = None
        self._looks: deque[Look] = deque(maxlen=LOOKS_MAX)
        self._seen: dict[Id, Count] = {}
        self._since_ms: dict[Id, int] = {}
        self._renewed_after_ms: dict[Id, int] = {}

    def observe(self, leases: Mapping[Id, Count], now_ms: int) -> None:
        """`now_ms` is taken after the response arrived."""
        if self._looked_ms is not None:
            renewed = (id_ for id_, lease in leases.items() if self._seen.get(id_) != lease)
            self._renewed_after_ms |= dict.fromkeys(renewed, self._looked_ms)
        self._renewed_after_ms = {id_: at_ms for id_, at_ms in self._renewed_after_ms.items() if id_ in leases}
        self._looked_ms = now_ms
        was_stalled = self._is_stalled(now_ms)
        own_was_renewed = self._own is not None and self._seen.get(self._own) != leases.get(self._own)
        self._since_ms = {
            id_: self._since_ms[id_] if self._seen.get(id_) == lease else now_ms for id_, lease in leases.items()
        }
        self._seen = dict(leases)
        self._looks.append(Look(now_ms, own_was_renewed, ends_stall=was_stalled and own_was_renewed))

    def _is_stalled(self, now_ms: int) -> bool:
        """Whether the watcher's own lease stands still, as far as it has looked."""
        since_ms = None if self._own is None else self._since_ms.get(self._own)
        return since_ms is not None and now_ms - since_ms > self._own_lease_ms * STALLED_SHARE

    def stands_still(self, id_: Id, lease_ms: int) -> bool:
        """As of the last look: what has happened since is unknown."""
        if id_ not in self._seen:
            return False
        last_ms = self._looks[-1].at_ms
        if last_ms - self._since_ms[id_] <= lease_ms * LEASE_MARGIN or self._is_stalled(last_ms):
            return False
        return last_ms - self._watched_since_ms(self._since_ms[id_], lease_ms) > lease_ms * LEASE_MARGIN

    def _watched_since_ms(self, since_ms: int, lease_ms: int) -> int:
        """Of a count that has stood still since then: since when the watch of it counts."""
        started_ms = former_ms = max(since_ms, self._looks[0].at_ms)
        interruptions_count = 0
        for look in self._looks:
            if look.at_ms <= former_ms:
                continue
            if look.ends_stall or look.at_ms - former_ms > lease_ms * BLIND_SHARE:
                interruptions_count += look.own_was_renewed
                if interruptions_count < INTERRUPTIONS_MAX:
                    started_ms = look.at_ms
            former_ms = look.at_ms
        return started_ms


class LeaseWatch(CountWatch[int, tuple[int, int]]):
    """Watches the leases of brokers.

    This is safe because the broker's lease, from the renewal that set the count, began before that renewal was sent,
    which is before we first saw the count; and because it is fenced by compare-and-set on exactly that count.
    """

    def has_run_out(self, row: BrokerRow) -> bool:
        seen = self._seen.get(row.broker_id)
        if seen is None or seen[0] != row.epoch or not row.is_live:
            return False
        return self.stands_still(row.broker_id, row.lease_ms)

    def has_renewed_since(self, row: BrokerRow, at_ms: int) -> bool:
        """Whether that very process has certainly renewed after `at_ms`: its count changed between two later looks."""
        seen = self._seen.get(row.broker_id)
        return seen is not None and seen[0] == row.epoch and self._renewed_after_ms.get(row.broker_id, -1) >= at_ms

    def expired(self, brokers: Iterable[BrokerRow]) -> list[ExpiredLease]:
        return [ExpiredLease(row.broker_id, *self._seen[row.broker_id]) for row in brokers if self.has_run_out(row)]
