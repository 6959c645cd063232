"""A look at the brokers from outside: what they say of logs, what their processes take, how far compaction may go.

Brokers may be away, and take long to answer, so whoever leads has this done in another thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from sexton.broker.compaction import answers
from sexton.client.client import Client
from sexton.errors import SextonError
from sexton.harness import asking
from sexton.harness.asking import Door
from sexton.verify import probes, samples
from sexton.verify.clients.base import Place
from sexton.verify.probes import Seen
from sexton.verify.samples import Sample
from sexton.verify.systems import INDEPENDENT, SEXTON, System

STATUS_TIMEOUT_MS: Final = 1_000
"""Of one broker after the other; nobody judges by it, and the next look comes in a second."""


class Looked(NamedTuple):
    samples: list[Sample]
    seen: Mapping[int, Seen]
    error: str


def look_at(system: System, places: Mapping[int, Place], compacted: Mapping[int, Place], now_ns: int) -> Looked:
    """`compacted` are those of the places whose topics are compacted."""
    found = [] if system.cluster is None else list(samples.of_brokers(system.cluster, now_ns))
    if compacted and system.name in (SEXTON, INDEPENDENT):
        found += removable(system.door, compacted, now_ns)
    try:
        seen = probes.watermarks(system.door, places)
    except SextonError as failed:
        return Looked(found, {}, str(failed).partition("\n")[0])
    return Looked([*found, *samples.of_logs(seen, now_ns)], seen, "")


def removable(door: Door, places: Mapping[int, Place], now_ns: int) -> list[Sample]:
    """Nothing while no broker answers."""

    async def question(client: Client) -> list[dict[str, Any]]:
        return await answers.status(client)

    try:
        return of_status(asking.ask(door, question, STATUS_TIMEOUT_MS), places, now_ns)
    except SextonError:
        return []


def of_status(status: Iterable[Mapping[str, Any]], places: Mapping[int, Place], now_ns: int) -> list[Sample]:
    """A row for each replica of these logs. A cloud topic has no replica that could keep others from removing."""
    log_of = {place: log for log, place in places.items()}
    return [
        Sample(
            time_ns=now_ns,
            broker=one["broker"],
            log=log_of[one["topic"], one["partition"]],
            high_watermark=one["high_watermark"],
            mtro=one["mtro"],
            mxro=one["mxro"],
        )
        for one in status
        if isinstance(one["broker"], int) and (one["topic"], one["partition"]) in log_of
    ]
