"""How long what is deleted, and who has written, is remembered: next to no time, or as long as a user says.

The seeds' own scripts take such a time (`10m`), and two days with Kafka's defaults: a day until tombstones and markers
may go (`delete.retention.ms`), a day until the empty batches of a producer may (`producer.id.expiration.ms`), and some
time for compaction to come by. So each of the two is given a third of the whole."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sexton.errors import SextonError

UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([0-9]+)([smhd])")


class BadPaceError(SextonError):
    exit_code = 64


@dataclass(frozen=True, slots=True)
class Pace:
    delete_retention_ms: int = 0
    producer_expiration_ms: int = 2_000

    @staticmethod
    def of(text: str) -> Pace:
        """Of a run that takes about so long: 90s, 10m, 2h, 2d."""
        matched = _DURATION.fullmatch(text.strip())
        if matched is None or int(matched[1]) == 0:
            raise BadPaceError(f"{text} is no time", "--pace", "Write 90s, 10m, 2h or 2d")
        third_ms = int(matched[1]) * UNITS_MS[matched[2]] // 3
        return Pace(third_ms, third_ms)

    @property
    def remembered_s(self) -> float:
        """Until nothing need be left of what was forgotten, however often compaction comes by."""
        return (self.delete_retention_ms + self.producer_expiration_ms) / 1000


HURRIED: Final = Pace()
