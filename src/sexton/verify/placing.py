"""Topic and partition of each log of a run, and how its topic is made. Logs are named when they are first used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sexton.history.op import Send
from sexton.verify.clients.base import Place
from sexton.verify.generator import Ask, Workload
from sexton.verify.session import Topics
from sexton.verify.systems import System


class Placing:
    """`places` and `topics` only ever become more."""

    def __init__(self, workload: Workload, system: System, topic_prefix: str) -> None:
        self._workload = workload
        self._system = system
        self._prefix = topic_prefix
        self.places: dict[int, Place] = {}
        self.topics: dict[str, Topics] = {}

    def name(self, ask: Ask) -> list[int]:
        """The logs that it names and nobody has named before."""
        return self.name_logs((*ask.logs, *(each.log for each in ask.micro_ops if isinstance(each, Send))))

    def name_logs(self, logs: Iterable[int]) -> list[int]:
        new = sorted(set(logs) - self.places.keys())
        for log in new:
            named = self._workload.log(log)
            topic = self._prefix + named.topic
            self.places[log] = (topic, named.partition)
            self.topics[topic] = self._topic(log)
        return new

    def _topic(self, log: int) -> Topics:
        partitions, settings = self._workload.topic(log)
        given: Mapping[str, str] = {**self._system.topic_settings, **settings}
        return Topics(partitions, self._system.replication, given)
