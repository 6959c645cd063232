"""Rules broken on purpose, and defects of the past put back: a simulator that does not find these finds nothing.

Each entry replaces a few functions or constants of the product for the time of a run. The tests run them all, and so
does `sexton simulate --break`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sexton.simulate.broken.cloud import CLOUD
from sexton.simulate.broken.compaction import COMPACTION
from sexton.simulate.broken.fetching import FETCHING
from sexton.simulate.broken.groups import GROUPS
from sexton.simulate.broken.leveled import LEVELED
from sexton.simulate.broken.logs import LOGS
from sexton.simulate.broken.replication import REPLICATION
from sexton.simulate.broken.rules import RULES
from sexton.simulate.broken.switch import Break
from sexton.simulate.broken.transactions import TRANSACTIONS

BREAKS: dict[str, Break] = RULES | REPLICATION | FETCHING | LOGS | COMPACTION | TRANSACTIONS | GROUPS | CLOUD | LEVELED


@contextmanager
def breaking(name: str | None) -> Iterator[None]:
    """While this lasts, the named rule does not hold, or the named defect is back."""
    if name is None:
        yield
        return
    with BREAKS[name].in_force():
        yield
