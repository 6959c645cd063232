"""Shared by the parts of one group coordinator: the groups, the offsets, the timers, and the effects of the current
operation.

An operation changes the state at once and collects its effects: records to append, responses to send. The service
appends the records, and sends responses only after everything that they depend on is committed. If the append fails,
all of this state is discarded and read again from the log.
"""

from __future__ import annotations

import base64
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from sexton.coordinators.bounds import STRING_BYTES_MAX, cut
from sexton.coordinators.groups import replay
from sexton.coordinators.groups.classic import ClassicGroup
from sexton.coordinators.groups.consumer import ConsumerGroup
from sexton.coordinators.groups.messages import ParkedAnswer
from sexton.coordinators.groups.offsets import OffsetStore
from sexton.coordinators.groups.pending_offsets import PendingOffsets
from sexton.coordinators.groups.records import ClassicGroupKey, Key, OffsetKey, OffsetValue, Record, Value
from sexton.coordinators.groups.timers import Timer
from sexton.coordinators.groups.topics import Topics
from sexton.coordinators.timers import Now, Timers
from sexton.settings.broker import GroupSettings
from sexton.settings.group import GroupConfig
from sexton.types import ProducerIdAndEpoch

UUID_CHARACTERS = 36


@dataclass(slots=True)
class Effects:
    """What the caller must do after one operation."""

    records: list[Record] = field(default_factory=list)
    """Records to append together: all or none."""
    owner: ProducerIdAndEpoch | None = None
    """The producer whose transaction the records are part of."""
    answers: list[tuple[int, ParkedAnswer]] = field(default_factory=list)
    """Responses by the token of their request. To be sent after the records are committed."""


class Core:
    def __init__(
        self,
        settings: GroupSettings,
        topics: Topics,
        rng: random.Random,
        own_config_of: Callable[[str], GroupConfig | None],
    ) -> None:
        """`own_config_of` returns a group's own configs; None if it has none."""
        self.settings = settings
        self.topics = topics
        self.rng = rng
        self.groups: dict[str, ClassicGroup | ConsumerGroup] = {}
        self.offsets = OffsetStore()
        self.pending = PendingOffsets()
        self.timers: Timers[Timer] = Timers()
        self.now = Now(0, 0)
        self.effects = Effects()
        self.own_config_of = own_config_of

    def config_of(self, group: str) -> GroupConfig:
        return self.own_config_of(group) or self.settings.group_config

    def begin(self, now: Now) -> None:
        self.now = now
        self.effects = Effects()

    def write(self, key: Key, value: Value | None) -> None:
        """Adds a record and applies it by the same code that replays it: the two cannot differ."""
        self.effects.records.append((key, value))
        replay.apply(self, key, value)

    def write_pending(self, owner: ProducerIdAndEpoch, key: OffsetKey, value: OffsetValue) -> None:
        """Does the same for an offset that takes effect when the transaction commits."""
        self.effects.owner = owner
        self.effects.records.append((key, value))
        replay.apply_pending(self, owner, key, value)

    def write_classic(self, group: ClassicGroup) -> None:
        """A classic group is changed first (most of its changes are never written) and then recorded as it is."""
        self.effects.records.append((ClassicGroupKey(group.group), group.to_value()))

    def answer(self, token: int | None, answer: ParkedAnswer) -> None:
        if token is not None:
            self.effects.answers.append((token, answer))

    def new_classic_member_id(self, prefix: str) -> str:
        return f"{cut(prefix, STRING_BYTES_MAX - UUID_CHARACTERS - 1)}-{self._uuid()}"

    def new_consumer_member_id(self) -> str:
        return base64.urlsafe_b64encode(self._uuid().bytes).rstrip(b"=").decode()

    def _uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)
