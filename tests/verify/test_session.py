"""A session over a driver that does as it is told: what each ending means, and where the consumer stands after it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest

from sexton.history.op import F, Poll, Record, Send, Span, Type
from sexton.verify.clients.base import ABORT, FATAL, FENCED, RETRY, Failure, Headers, Message, Place, Refused
from sexton.verify.generator import Ask
from sexton.verify.reading import encoded
from sexton.verify.session import FAILURES_MAX, INTENDED, Options, Session, Topics

PLACES = {0: ("t0", 0), 1: ("t0", 1)}
TOPICS = {"t0": Topics(2, 3)}


class Cluster:
    """Logs, and which call is to fail next, with what."""

    def __init__(self) -> None:
        self.logs: dict[Place, list[Message]] = {place: [] for place in PLACES.values()}
        self.failures: dict[str, Exception] = {}
        self.calls: list[str] = []
        self.consumers: list[Mapping[str, Any]] = []
        """Settings of each that was made."""
        self.topics: set[str] = set()
        self.given: list[Place] = []
        """What the group gives its only member."""
        self.committed: dict[Place, int] = {}

    def called(self, call: str) -> None:
        self.calls.append(call)
        if call in self.failures:
            raise self.failures.pop(call)


def driver(cluster: Cluster) -> ModuleType:
    class Producer:
        def __init__(self, *_: Any) -> None:
            self._offsets: list[int] = []

        def init(self) -> None:
            cluster.called("init")

        def begin(self) -> None:
            cluster.called("begin")

        def send(
            self, topic: str, partition: int, values: Sequence[bytes | None], key: bytes | None, headers: Headers
        ) -> None:
            cluster.called("send")
            log = cluster.logs[topic, partition]
            for value in values:
                log.append(Message(topic, partition, len(log), key, value, headers, 0, ""))
                self._offsets.append(len(log) - 1)

        def flush(self) -> list[int]:
            cluster.called("flush")
            found, self._offsets = self._offsets, []
            return found

        def send_offsets(self, offsets: Mapping[Place, int], consumer: Any) -> None:
            cluster.called(f"offsets {sorted(offsets.items())}")

        def commit(self) -> None:
            cluster.called("commit")

        def abort(self) -> None:
            cluster.called("abort")

        def close(self) -> None:
            cluster.called("close")

    class Consumer:
        def __init__(self, *told: Any) -> None:
            cluster.consumers.append(told[3])
            self._positions: dict[Place, int] = {}

        def group_metadata(self) -> str:
            return "member"

        def assign(self, starts: Mapping[Place, int]) -> None:
            cluster.called(f"assign {sorted(starts.items())}")
            self._positions = dict(starts)

        def poll_messages(self, timeout_s: float) -> list[Message]:
            cluster.called("poll")
            found = [each for place, start in self._positions.items() for each in cluster.logs[place][start:]]
            self._positions = {place: len(cluster.logs[place]) for place in self._positions}
            return found

        def position(self, place: Place) -> int:
            return self._positions[place]

        def subscribe(self, topics: Sequence[str]) -> None:
            cluster.called(f"subscribe {topics}")

        def rebalanced(self) -> list[Place]:
            moved = [place for place in cluster.given if place not in self._positions]
            self._positions |= {place: cluster.committed.get(place, 0) for place in moved}
            return moved

        def assignment(self) -> list[Place]:
            return list(cluster.given)

        def seek(self, place: Place, offset: int) -> None:
            cluster.called(f"seek {place} {offset}")
            self._positions[place] = offset

        def seek_to_beginning(self, place: Place) -> None:
            self.seek(place, 0)

        def committed(self, place: Place) -> int | None:
            return cluster.committed.get(place)

        def commit_offsets(self, offsets: Mapping[Place, int], metadata: str) -> None:
            cluster.called("commit offsets")
            cluster.committed |= offsets

        def generation(self) -> int:
            return 3

        def leave(self) -> None:
            cluster.called("leave")

        def bounds(self, place: Place) -> tuple[int, int]:
            cluster.called("bounds")
            return 0, len(cluster.logs[place])

        def close(self) -> None:
            cluster.called("close consumer")

    class Admin:
        def __init__(self, *_: Any) -> None: ...

        def create(self, topic: str, *_: Any) -> None:
            cluster.called("create")
            if topic in cluster.topics:
                raise Refused(36, "TOPIC_ALREADY_EXISTS")
            cluster.topics.add(topic)

        def close(self) -> None: ...

    module = ModuleType("driver")
    module.__dict__.update(Producer=Producer, Consumer=Consumer, Admin=Admin, prepare=lambda: None)
    return module


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    monkeypatch.setitem(sys.modules, "sexton.verify.clients.told", driver(found))
    return found


@pytest.fixture
def session(cluster: Cluster) -> Session:
    options = Options(driver="told", bootstrap="", transactional_id="id", group="g")
    made = Session(options)
    assert made.do(Ask(F.ASSIGN, logs=(0, 1)), PLACES, TOPICS).type is Type.OK
    cluster.calls.clear()
    return made


def txn(*micro_ops: Send | Poll, **ext: Any) -> Ask:
    return Ask(F.TXN, micro_ops, ext={"transaction": True, **ext})


def test_what_is_sent_has_an_offset_and_what_is_polled_a_span(session: Session, cluster: Cluster) -> None:
    first = session.do(Ask(F.SEND, (Send(1, 7),)), {}, {})
    assert (first.type, first.micro_ops) == (Type.OK, (Send(1, 7, offset=0),))
    polled = session.do(Ask(F.POLL, (Poll(),)), {}, {})
    assert polled.micro_ops == (Poll({1: (Record(0, 7),)}),)
    assert polled.spans == {0: Span(0, 0), 1: Span(0, 1)}
    assert polled.ext == {"group": "g"}


def test_keys_and_tombstones_come_back_as_they_were_sent(session: Session, cluster: Cluster) -> None:
    session.do(Ask(F.SEND, (Send(0, 7, key=3),)), {}, {})
    session.do(Ask(F.SEND, (Send(0, 8, key=3, is_tombstone=True),)), {}, {})
    assert [(each.value, each.key) for each in cluster.logs["t0", 0]] == [(encoded(7), encoded(3)), (None, encoded(3))]
    polled = session.do(Ask(F.POLL, (Poll(),)), {}, {})
    assert polled.micro_ops == (Poll({0: (Record(0, 7, 3), Record(1, 8, 3, True))}),)


def test_a_transaction_commits_the_offsets_of_what_it_polled(session: Session, cluster: Cluster) -> None:
    session.do(Ask(F.SEND, (Send(1, 7),)), {}, {})
    done = session.do(txn(Poll(), Send(0, 8)), {}, {})
    assert done.type is Type.OK
    assert done.ext == {"group": "g", "offsets": {1: 1}}
    assert cluster.calls[-2:] == ["offsets [(('t0', 1), 1)]", "commit"]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_an_abort_on_purpose_fails_and_the_consumer_goes_back(session: Session, cluster: Cluster, after: int) -> None:
    session.do(Ask(F.SEND, (Send(1, 7),)), {}, {})
    cluster.calls.clear()
    done = session.do(txn(Poll(), Send(0, 8), abort_after=after), {}, {})
    assert (done.type, done.error) == (Type.FAIL, INTENDED)
    assert "commit" not in cluster.calls
    assert done.spans == ({0: Span(0, 0), 1: Span(0, 1)} if after else {}), "as it was before it went back"
    assert session.do(Ask(F.POLL, (Poll(),)), {}, {}).spans[1] == Span(0, 1)


@pytest.mark.parametrize(
    ("call", "failure", "type_", "aborts"),
    [
        ("init", Failure(RETRY, "_TIMED_OUT", ""), Type.FAIL, False),
        ("begin", Failure(FATAL, "_STATE", ""), Type.FAIL, False),
        ("flush", Failure(ABORT, "NOT_LEADER_FOR_PARTITION", ""), Type.FAIL, True),
        ("flush", Failure(RETRY, "_TIMED_OUT", ""), Type.FAIL, False),
        ("flush", Failure(FENCED, "_FENCED", ""), Type.FAIL, False),
        ("commit", Failure(ABORT, "INVALID_TXN_STATE", ""), Type.FAIL, True),
        ("commit", Failure(FENCED, "PRODUCER_FENCED", ""), Type.FAIL, False),
        ("commit", Failure(FATAL, "UNKNOWN_SERVER_ERROR", ""), Type.INFO, False),
        ("commit", Failure(RETRY, "_TIMED_OUT", ""), Type.INFO, False),
    ],
)
def test_a_transaction_that_nobody_tried_to_commit_certainly_failed(
    session: Session, cluster: Cluster, call: str, failure: Failure, type_: Type, aborts: bool
) -> None:
    cluster.failures[call] = failure
    assert session.do(txn(Send(0, 8)), {}, {}).type is type_
    assert ("abort" in cluster.calls) is aborts


def test_nobody_knows_what_came_of_a_commit_whose_abort_failed_too(session: Session, cluster: Cluster) -> None:
    cluster.failures = {"commit": Failure(ABORT, "x", ""), "abort": Failure(RETRY, "_TIMED_OUT", "")}
    assert session.do(txn(Send(0, 8)), {}, {}).type is Type.INFO


def session_with(cluster: Cluster, **options: Any) -> Session:
    made = Session(Options(driver="told", bootstrap="", transactional_id="id", group="g", **options))
    made.do(Ask(F.ASSIGN, logs=(0, 1)), PLACES, TOPICS)
    cluster.calls.clear()
    return made


@pytest.mark.parametrize(("asks", "type_"), [(False, Type.INFO), (True, Type.FAIL)])
def test_a_commit_that_was_not_answered_in_time_is_aborted_only_if_that_is_asked_for(
    cluster: Cluster, asks: bool, type_: Type
) -> None:
    session = session_with(cluster, aborts_after_timeout=asks)
    cluster.failures["commit"] = Failure(RETRY, "_TIMED_OUT", "")
    assert session.do(txn(Send(0, 8)), {}, {}).type is type_
    assert ("abort" in cluster.calls) is asks


def test_a_record_that_was_not_written_in_time_is_not_taken_for_a_commit(cluster: Cluster) -> None:
    session = session_with(cluster, aborts_after_timeout=True)
    cluster.failures["flush"] = Failure(RETRY, "_TIMED_OUT", "")
    session.do(txn(Send(0, 8)), {}, {})
    assert "abort" not in cluster.calls


def test_who_does_not_rewind_reads_on_after_an_abort(cluster: Cluster) -> None:
    session = session_with(cluster, rewinds=False)
    session.do(Ask(F.SEND, (Send(1, 7),)), {}, {})
    assert session.do(txn(Poll(), abort_after=1), {}, {}).type is Type.FAIL
    assert session.do(Ask(F.POLL, (Poll(),)), {}, {}).spans[1] == Span(1, 1)


def test_after_a_failure_that_ends_a_producer_there_is_a_new_one(session: Session, cluster: Cluster) -> None:
    cluster.failures["flush"] = Failure(FENCED, "_FENCED", "")
    session.do(txn(Send(0, 8)), {}, {})
    cluster.calls.clear()
    assert session.do(txn(Send(0, 9)), {}, {}).type is Type.OK
    assert cluster.calls[:2] == ["init", "begin"]


def test_a_producer_that_fails_again_and_again_gets_a_successor(session: Session, cluster: Cluster) -> None:
    for _ in range(FAILURES_MAX):
        cluster.failures["flush"] = Failure(ABORT, "UNKNOWN_PRODUCER_ID", "")
        session.do(txn(Send(0, 8)), {}, {})
    assert cluster.calls.count("init") == 1
    session.do(txn(Send(0, 9)), {}, {})
    assert cluster.calls.count("init") == 2


@pytest.mark.parametrize(
    ("name", "type_"), [("UNKNOWN_TOPIC_OR_PART", Type.FAIL), ("NOT_LEADER_FOR_PARTITION", Type.INFO)]
)
def test_a_send_alone_failed_only_if_it_was_refused(session: Session, cluster: Cluster, name: str, type_: Type) -> None:
    cluster.failures["flush"] = Failure(ABORT, name, "")
    assert session.do(Ask(F.SEND, (Send(0, 8),)), {}, {}).type is type_


def test_a_poll_that_raises_what_no_driver_knows_has_failed(session: Session, cluster: Cluster) -> None:
    cluster.failures["poll"] = ValueError("a client's bug")
    done = session.do(Ask(F.POLL, (Poll(),)), {}, {})
    assert done.type is Type.FAIL
    assert "ValueError" in done.error


def test_a_log_that_stays_assigned_is_read_on_and_a_new_one_from_its_start(session: Session, cluster: Cluster) -> None:
    session.do(Ask(F.SEND, (Send(1, 7),)), {}, {})
    session.do(Ask(F.POLL, (Poll(),)), {}, {})
    session.do(Ask(F.ASSIGN, logs=(1,)), {}, {})
    session.do(Ask(F.ASSIGN, logs=(0, 1)), {}, {})
    assert cluster.calls[-1] == "assign [(('t0', 0), 0), (('t0', 1), 1)]"


def test_a_table_is_read_by_a_fresh_consumer_to_the_end_it_asked_for(session: Session, cluster: Cluster) -> None:
    session.do(Ask(F.SEND, (Send(0, 7, key=1),)), {}, {})
    done = session.do(Ask(F.TABLE, (Poll(),), logs=(0,)), {}, {})
    assert (done.type, done.micro_ops) == (Type.OK, (Poll({0: (Record(0, 7, 1),)}),))
    assert done.spans == {0: Span(0, 1)}
    assert cluster.calls[-1] == "close consumer"


def test_who_reads_a_whole_log_waits_for_nothing_and_who_stays_may_be_patient(cluster: Cluster) -> None:
    patient = {"fetch.min.bytes": 400}
    options = Options(
        driver="told",
        bootstrap="",
        transactional_id="id",
        group="g",
        consumer=patient,
        fresh_consumer={"fetch.min.bytes": 1},
    )
    session = Session(options)
    session.do(Ask(F.ASSIGN, logs=(0,)), PLACES, TOPICS)
    session.do(Ask(F.TABLE, (Poll(),), logs=(0,)), {}, {})
    assert cluster.consumers == [patient, {"fetch.min.bytes": 1}]


def test_topics_are_made_once_and_may_be_there_already(cluster: Cluster) -> None:
    cluster.topics.add("t0")
    options = Options(driver="told", bootstrap="", transactional_id="id", group="g")
    session = Session(options)
    assert session.do(Ask(F.SEND, (Send(0, 1),)), PLACES, TOPICS).type is Type.OK
    session.do(Ask(F.SEND, (Send(0, 2),)), {}, {})
    assert cluster.calls.count("create") == 1


def test_without_its_topic_a_send_certainly_failed(cluster: Cluster) -> None:
    options = Options(driver="told", bootstrap="", transactional_id="id", group="g")
    cluster.failures["create"] = Refused(None, "TIMED_OUT")
    assert Session(options).do(Ask(F.SEND, (Send(0, 1),)), PLACES, TOPICS).type is Type.FAIL


@pytest.fixture
def member(session: Session, cluster: Cluster) -> Session:
    """Of a group that has given it both logs, in the first of which is a record."""
    session.do(Ask(F.SEND, (Send(0, 7),)), {}, {})
    assert session.do(Ask(F.SUBSCRIBE, logs=(0, 1)), {}, {}).type is Type.OK
    cluster.given = list(PLACES.values())
    first = session.do(Ask(F.POLL, (Poll(),)), {}, {})
    assert first.rebalanced == {0, 1}
    cluster.calls.clear()
    return session


def test_who_subscribes_is_another_consumer_than_who_assigned(session: Session, cluster: Cluster) -> None:
    session.do(Ask(F.SUBSCRIBE, logs=(0, 1)), {}, {})
    assert cluster.calls == ["leave", "subscribe ['t0']"]


def test_a_member_commits_what_it_has_read_and_says_in_which_generation(member: Session, cluster: Cluster) -> None:
    member.do(Ask(F.POLL, (Poll(),)), {}, {})
    done = member.do(Ask(F.COMMIT), {}, {})
    assert (done.type, done.offsets) == (Type.OK, {0: 1, 1: 0})
    assert done.ext == {"group": "g", "generation": 3}
    assert member.do(Ask(F.COMMITTED, logs=(0, 1)), {}, {}).offsets == {0: 1, 1: 0}


@pytest.mark.parametrize(
    ("name", "type_"), [("ILLEGAL_GENERATION", Type.FAIL), ("CommitFailedError", Type.FAIL), ("_TIMED_OUT", Type.INFO)]
)
def test_a_commit_failed_only_if_it_was_refused(member: Session, cluster: Cluster, name: str, type_: Type) -> None:
    cluster.failures["commit offsets"] = Failure(ABORT, name, "")
    done = member.do(Ask(F.COMMIT), {}, {})
    assert (done.type, done.offsets) == (type_, {0: 0, 1: 0})


def test_a_copier_commits_the_offsets_of_its_last_poll_with_what_it_made_of_it(
    member: Session, cluster: Cluster
) -> None:
    polled = member.do(Ask(F.POLL, (Poll(),)), {}, {})
    assert polled.spans[0] == Span(0, 1)
    done = member.do(Ask(F.EOS, (Send(1, 8, key=7),), ext={"transaction": True}), {}, {})
    assert (done.type, done.ext["offsets"]) == (Type.OK, {0: 1})
    assert "offsets [(('t0', 0), 1)]" in cluster.calls


def test_a_copier_that_failed_goes_back_to_what_its_group_has_committed(member: Session, cluster: Cluster) -> None:
    member.do(Ask(F.POLL, (Poll(),)), {}, {})
    member.do(Ask(F.EOS, (Send(1, 8, key=7),), ext={"transaction": True, "abort_after": 1}), {}, {})
    assert {f"seek {place} 0" for place in PLACES.values()} <= set(cluster.calls)
    assert member.do(Ask(F.POLL, (Poll(),)), {}, {}).spans[0] == Span(0, 1)


def test_who_cannot_be_rewound_is_not_asked_again(member: Session, cluster: Cluster) -> None:
    cluster.failures["seek ('t0', 0) 0"] = Failure(RETRY, "_TIMED_OUT", "")
    done = member.do(Ask(F.EOS, (Send(1, 8, key=7),), ext={"transaction": True, "abort_after": 1}), {}, {})
    assert done.type is Type.INFO
    assert "not rewound" in done.error


def test_who_subscribes_to_nothing_leaves(member: Session, cluster: Cluster) -> None:
    assert member.do(Ask(F.SUBSCRIBE), {}, {}).type is Type.OK
    assert cluster.calls == ["leave"]
    assert member.do(Ask(F.COMMIT), {}, {}).type is Type.FAIL


def test_a_client_that_does_not_say_where_it_stands_has_read_what_it_was_given(
    member: Session, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka, before the first record of a log: what it copies must be committed nevertheless."""
    session = sys.modules["sexton.verify.clients.told"]
    monkeypatch.setattr(session.Consumer, "position", lambda self, place: -1001)
    member.do(Ask(F.SUBSCRIBE), {}, {})
    cluster.given = []
    member.do(Ask(F.SUBSCRIBE, logs=(0, 1)), {}, {})
    cluster.given = list(PLACES.values())
    member.do(Ask(F.POLL, (Poll(),)), {}, {})
    polled = member.do(Ask(F.POLL, (Poll(),)), {}, {})
    assert polled.spans == {0: Span(0, 1)}
    assert member.do(Ask(F.COMMIT), {}, {}).offsets == {0: 1}


def test_a_transaction_may_leave_the_consumer_where_it_is(session: Session, cluster: Cluster) -> None:
    session.do(Ask(F.SEND, (Send(1, 7),)), {}, {})
    session.do(txn(Poll(), Send(0, 8), abort_after=2, stays=True), {}, {})
    assert session.do(Ask(F.POLL, (Poll(),)), {}, {}).spans[1] == Span(1, 1)


def test_a_producer_with_a_successor_goes_on_and_only_the_successor_is_left(session: Session, cluster: Cluster) -> None:
    assert session.do(txn(Send(0, 1)), {}, {}).type is Type.OK
    cluster.calls.clear()
    cluster.failures["commit"] = Failure(FENCED, "_FENCED", "there is another one")
    done = session.do(txn(Send(0, 2), Send(0, 3), succeeded_after=1), {}, {})
    assert cluster.calls == ["begin", "send", "flush", "init", "send", "flush", "commit", "close"]
    assert (done.type, done.error) == (Type.FAIL, "fenced: _FENCED: there is another one")
    cluster.calls.clear()
    assert session.do(txn(Send(0, 4)), {}, {}).type is Type.OK
    assert "init" not in cluster.calls, "the successor is there already"


def test_a_zombie_that_aborts_does_not_abort_what_its_successor_does(session: Session, cluster: Cluster) -> None:
    done = session.do(txn(Send(0, 1), Send(0, 2), succeeded_after=1, abort_after=2), {}, {})
    assert (done.type, done.error) == (Type.FAIL, INTENDED)
    assert cluster.calls.count("abort") == 1
    assert cluster.calls[-1] == "close", "the zombie, not the successor"
    cluster.calls.clear()
    assert session.do(txn(Send(0, 4)), {}, {}).type is Type.OK
    assert "init" not in cluster.calls


def test_what_is_sent_without_a_transaction_may_be_without_idempotence(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = sys.modules["sexton.verify.clients.told"]
    made: list[tuple[str, Any]] = []
    producer = told.Producer

    def make(*given: Any) -> Any:
        made.append((given[1], given[3]))
        return producer(*given)

    monkeypatch.setattr(told, "Producer", make)
    plain = Session(
        Options(driver="told", bootstrap="", transactional_id="id", group="g", plain_producer={"retries": 0})
    )
    plain.do(Ask(F.SEND, (Send(0, 1),)), PLACES, TOPICS)
    plain.do(txn(Send(0, 2)), {}, {})
    assert made == [("", {"retries": 0}), ("id", {})]


def test_a_member_with_an_epoch_of_its_own_tells_no_generation(cluster: Cluster) -> None:
    member = Session(Options(driver="told", bootstrap="", transactional_id="id", group="g", has_generation=False))
    cluster.given = [PLACES[0]]
    member.do(Ask(F.SUBSCRIBE, logs=(0,)), PLACES, TOPICS)
    member.do(Ask(F.SEND, (Send(0, 1),)), {}, {})
    member.do(Ask(F.POLL, (Poll(),)), {}, {})
    committed = member.do(Ask(F.COMMIT), {}, {})
    assert (committed.type, committed.ext) == (Type.OK, {"group": "g"})
