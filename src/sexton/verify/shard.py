"""A process of a sharded run: it decides itself what it does, does it, and writes down what came of it.

It has *lanes*. In the first one is a whole client, which does one operation after the other. In each of the others is
somebody who sends one record after the other; all of them through one producer, which sends what they have at a time in
one request. So a record that is sent alone, without a transaction, goes to a free lane, everything else to the first.

Nobody is asked through a pipe: that is what makes it quick. Values are told apart from those of other shards by their
remainder. Whoever leads is told of logs when they are first used, once a second of how far it is, and at the end of
what was written; it ends this by closing the pipe.

    python -m sexton.verify.shard      # takes pickled `ShardOptions`, and when it is ready the start, from the input
"""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from sexton.history.lines import Writer
from sexton.history.op import F, Op, Send, Type
from sexton.verify.clients import known
from sexton.verify.clients.base import FATAL, FENCED, Failure, Refused, Settings
from sexton.verify.generator import NS, Ask, Generator, Question
from sexton.verify.outcomes import is_refused
from sexton.verify.placing import Placing
from sexton.verify.plan import FETCHES, Plan, options_of
from sexton.verify.reading import content_of
from sexton.verify.session import Completion, Session
from sexton.verify.systems import System
from sexton.verify.workloads.known import WORKLOADS, Asked

SENDS_AT_ONCE: Final = "confluent-kafka"
"""The client whose producer can be given several records, and says what became of each."""

SENDING: Final[Settings] = {"delivery.timeout.ms": 10_000}
POLL_S: Final = 0.0
"""Of the first lane: the others wait meanwhile."""

LISTEN_EVERY: Final = 16
"""Operations, to what became of others."""

TELL_NS: Final = NS
LAST_S: Final = 15.0
"""For what is under way at the end: longer than a record may take."""

_NEVER_NS: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    number: int
    count: int
    lanes: int
    plan: Plan
    system: System
    """Without what only its owner can use."""
    workload: str
    asked: Asked
    path: Path
    """Path of the shard's piece of the history."""


@dataclass(slots=True)
class _Lane:
    thread: int
    process: int
    asked: Op | None = None


@dataclass(slots=True)
class _Told:
    """What was told of this to whoever leads."""

    at_ns: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class Shard:
    def __init__(self, options: ShardOptions, file: BinaryIO, tell: BinaryIO) -> None:
        self._options = options
        self._start_ns = 0
        self._plan = plan = options.plan
        rng = random.Random(plan.seed + 2)
        self._workload = WORKLOADS[options.workload].make(options.asked, rng)
        rng.seed(f"{plan.seed} {options.number}")  # the topics are those of all shards, what is done there is its own
        self._rng = random.Random(f"{plan.seed} {options.number} generator")
        self._client = plan.clients[options.number % len(plan.clients)]
        self._client_name = f"{self._client} {known.version_of(self._client)}"
        first = options.number * options.lanes
        self._lanes = [_Lane(first + each, first + each) for each in range(options.lanes)]
        self._free = self._lanes[1:] if self._client == SENDS_AT_ONCE else []
        self._placing = Placing(self._workload, options.system, plan.topic_prefix)
        self._writer = Writer(file)
        self._tell = tell
        self._told = _Told()
        self._index = 0
        self._under_way = 0
        self._deaf_count = 0
        self._session = self._new_session()
        self._is_session_new = True
        self._sending: Any = self._new_sending() if self._free else None

    def run(self, start_ns: int, is_over: threading.Event) -> None:
        """The start is the whole run's, on the clock that all processes of the machine share."""
        self._start_ns = start_ns
        plan, count = self._plan, self._options.count
        generator = Generator(self._workload, self._rng, plan.rate / count, _NEVER_NS, plan.crash_every_ns * count)
        while not is_over.is_set():
            now_ns = self._now()
            asked = generator.next(now_ns, [self._lanes[0].process])
            if isinstance(asked, Question):
                self._ask(self._own(asked.ask))
            elif asked is not None:
                self._wait(min((asked.until_ns - now_ns) / NS, 0.05))
            if now_ns - self._told.at_ns >= TELL_NS:
                self._told.at_ns = now_ns
                self._say({"counts": self._told.counts})
        self._end()

    def _now(self) -> int:
        return time.monotonic_ns() - self._start_ns

    def _own(self, ask: Ask) -> Ask:
        """No other shard sends the same values."""
        number, count = self._options.number, self._options.count
        if ask.f in (F.POLL, F.ASSIGN, F.SUBSCRIBE):
            return ask
        own = [
            each._replace(value=each.value * count + number) if isinstance(each, Send) else each
            for each in ask.micro_ops
        ]
        return ask._replace(micro_ops=tuple(own))

    # -- operations

    def _ask(self, ask: Ask) -> None:
        new = self._placing.name(ask)
        if new:
            self._say({"logs": new})
        if self._free or self._under_way:
            if new and not self._make_topics():
                return
            if ask.f == F.SEND and not ask.ext and len(ask.micro_ops) == 1:
                self._send(ask)
                return
            self._listen()
        lane = self._lanes[0]
        self._invoke(lane, ask)
        if ask.f == F.CRASH:
            self._complete(lane, Completion(type=Type.INFO))
        else:
            news = (self._placing.places, self._placing.topics) if new or self._is_session_new else ({}, {})
            self._is_session_new = False
            self._complete(lane, self._session.do(ask, *news))

    def _make_topics(self) -> bool:
        """One that cannot be made now is made when the session is next asked for something."""
        try:
            self._session.know(self._placing.places, self._placing.topics)
        except Refused:
            return False
        return True

    def _send(self, ask: Ask) -> None:
        while not self._free:
            self._sending.poll(0.05)
        lane = self._free.pop()
        (send,) = ask.micro_ops
        assert isinstance(send, Send)
        self._under_way += 1
        self._invoke(lane, ask)
        place = self._placing.places[send.log]
        self._sending.send(place, *content_of(send), partial(self._sent, lane, send))
        self._listen()

    def _listen(self) -> None:
        """Not each time: that what is done is told a little later does no harm."""
        self._deaf_count += 1
        if self._deaf_count >= LISTEN_EVERY:
            self._deaf_count = 0
            self._sending.poll(0)

    def _sent(self, lane: _Lane, send: Send, outcome: int | Failure) -> None:
        if lane.asked is None:
            return  # nobody waits for it any more
        self._under_way -= 1
        self._free.append(lane)
        if not isinstance(outcome, Failure):
            self._complete(lane, Completion(type=Type.OK, micro_ops=(send._replace(offset=outcome),)))
            return
        type_ = Type.FAIL if is_refused(outcome) else Type.INFO
        self._complete(lane, Completion(type=type_, error=str(outcome)))
        if outcome.todo in (FATAL, FENCED):
            self._renew_sending()

    def _renew_sending(self) -> None:
        """One that is lost for good. Whatever is under way in it is lost with it, as far as anybody knows."""
        self._sending.close()
        self._sending = self._new_sending()
        for lane in self._lanes[1:]:
            if lane.asked is not None:
                self._under_way -= 1
                self._free.append(lane)
                self._complete(lane, Completion(type=Type.INFO, error="its producer was lost"))

    def _wait(self, seconds: float) -> None:
        if self._sending is not None:
            self._sending.poll(seconds)
        else:
            time.sleep(seconds)

    # -- clients

    def _new_session(self) -> Session:
        lane = self._lanes[0]
        needs = self._workload.needs(lane.process)
        fetch = self._rng.choice(FETCHES)
        options = options_of(self._plan, self._options.system, needs, self._client, lane.thread, lane.process, fetch)
        return Session(replace(options, poll_s=POLL_S) if self._free else options)

    def _new_sending(self) -> Any:
        from sexton.verify.clients.confluent import Sending

        system, settings = self._options.system, self._plan.producer_settings(self._client)
        return Sending(system.bootstrap, {**SENDING, **settings}, system.security)

    # -- the history

    def _invoke(self, lane: _Lane, ask: Ask) -> None:
        op = Op(
            *(self._index, self._now(), lane.process, Type.INVOKE, ask.f, ask.micro_ops, ask.named_logs),
            client=self._client_name,
            ext=ask.ext,
        )
        self._write(op)
        lane.asked = op

    def _complete(self, lane: _Lane, done: Completion) -> None:
        assert lane.asked is not None
        op = done.op(lane.asked, self._index, self._now())
        self._write(op)
        lane.asked = None
        self._workload.completed(op)
        if op.type is Type.INFO:
            lane.process += self._options.plan.threads_count
            if lane is self._lanes[0]:
                self._session.end()
                self._session = self._new_session()
                self._is_session_new = True

    def _write(self, op: Op) -> None:
        self._index += 1
        self._writer.write(op, op.time_ns)
        name = op.type.name
        self._told.counts[name] = self._told.counts.get(name, 0) + 1

    # -- whoever leads

    def say_ready(self) -> None:
        self._say({"ready": True})

    def _say(self, what: dict[str, Any]) -> None:
        self._tell.write(json.dumps(what).encode() + b"\n")
        self._tell.flush()

    def _end(self) -> None:
        deadline_s = time.monotonic() + LAST_S
        while self._under_way and time.monotonic() < deadline_s:
            self._sending.poll(0.05)
        for lane in self._lanes:
            if lane.asked is not None:
                self._complete(lane, Completion(type=Type.INFO, error="it was not acknowledged before the end"))
        self._writer.flush()
        final = self._workload.final()
        self._say(
            {
                "counts": self._told.counts,
                "f": final.f,
                "logs": list(self._workload.logs),
                "ends": {str(log): offset for log, offset in final.offsets.items()},
                "seen": dict(self._workload.seen),
            }
        )


def main() -> None:
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what clients print
    options: ShardOptions = pickle.load(questions)
    is_over = threading.Event()

    def wait() -> None:
        questions.read()
        is_over.set()

    with options.path.open("wb") as file:
        shard = Shard(options, file, answers)
        shard.say_ready()
        start_ns = pickle.load(questions)
        threading.Thread(target=wait, daemon=True).start()
        shard.run(start_ns, is_over)
    sys.stderr.flush()
    os._exit(0)  # clients that were left behind may hold threads


if __name__ == "__main__":
    main()
