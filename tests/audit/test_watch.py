"""A watch: what its metrics say, and that an audit that fails does not end it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from typer.testing import CliRunner

from sexton.adapters.sockets import SocketNetwork
from sexton.audit.report import Report
from sexton.audit.watch import Watched, WatchMetrics, watch
from sexton.cli.audit_watch import parse_duration_s, parse_endpoint
from sexton.cli.broker import UsageError
from sexton.cli.main import app
from sexton.errors import SextonError
from sexton.http.process_pages import ProcessPages
from sexton.spark import session
from tests.audit.replicas import On, audited, brokers
from tests.logs import abort, data, in_transaction

FILLER = data((b"filler", b"x"), at=8)
CAME_BACK = On([data((b"user", b"alice"), at=0), FILLER])
CLEANED = On([FILLER], clean=8)


@pytest.fixture
def diverged(tmp_path: Path) -> Report:
    return audited(brokers(tmp_path, CLEANED, CLEANED, CAME_BACK))


def sample(watched: Watched, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(WatchMetrics(watched))
    return registry.get_sample_value(name, labels)


def test_keys_that_differ_are_counted_by_class_and_partition(diverged: Report) -> None:
    watched = Watched()
    asyncio.run(watch(lambda: diverged, watched, every_s=1, count=1))
    assert sample(watched, "sexton_audit_differing_keys", **{"class": "tombstone"}) == 1
    assert sample(watched, "sexton_audit_differing_keys", **{"class": "stuck"}) == 0
    labels = {"topic": "orders", "partition": "0", "class": "tombstone"}
    assert sample(watched, "sexton_audit_partition_differing_keys", **labels) == 1
    assert sample(watched, "sexton_audit_partitions", verdict="diverged") == 1
    assert sample(watched, "sexton_audit_partitions", verdict="agree") == 0


def test_a_replica_that_is_wrong_without_a_key_counts_as_one(tmp_path: Path) -> None:
    whole = [in_transaction((b"a", b"1"), at=0, pid=7), abort(6, 7), FILLER]
    watched = Watched(report=audited(brokers(tmp_path, On(whole), On(whole, aborted=[]))))
    assert sample(watched, "sexton_audit_differing_keys", **{"class": "wrong-claim"}) == 1
    labels = {"topic": "orders", "partition": "0", "class": "wrong-claim"}
    assert sample(watched, "sexton_audit_partition_differing_keys", **labels) == 1


def test_an_audit_that_fails_is_counted_and_tried_again(diverged: Report) -> None:
    watched = Watched()
    outcomes: Iterator[Report | SextonError] = iter([SextonError("away"), diverged, SextonError("away again")])

    def look() -> Report:
        outcome = next(outcomes)
        if isinstance(outcome, SextonError):
            raise outcome
        return outcome

    asyncio.run(watch(look, watched, every_s=0.001, count=3))
    assert (watched.runs_count, watched.failed_count, watched.is_failing) == (1, 2, True)
    assert sample(watched, "sexton_audit_is_failing") == 1
    assert sample(watched, "sexton_audit_differing_keys", **{"class": "tombstone"}) == 1  # of the last that did not


def test_a_bug_ends_it() -> None:
    def look() -> Report:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(watch(look, Watched(), every_s=1, count=2))


async def test_metrics_are_served(diverged: Report) -> None:
    watched = Watched(report=diverged, runs_count=1)
    pages = ProcessPages(WatchMetrics(watched))
    port = await pages.start(SocketNetwork(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    body = await reader.read()
    writer.close()
    pages.close()
    registry = CollectorRegistry()
    registry.register(WatchMetrics(watched))
    assert body.endswith(generate_latest(registry))


def test_a_watch_begins_where_its_cluster_is_away_and_logs_its_own_lines_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    context = SimpleNamespace(defaultParallelism=1, master="local[1]")
    monkeypatch.setattr(session, "start", lambda *given: SimpleNamespace(sparkContext=context))
    arguments = ["audit", "watch", "--bootstrap", "127.0.0.1:1", "--metrics", "127.0.0.1:0", "--count", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.exception
    assert "this audit failed: 127.0.0.1:1" in caplog.text
    assert not logging.getLogger("py4j.clientserver").isEnabledFor(logging.INFO)


@pytest.mark.parametrize(("text", "seconds"), [("6h", 21_600), ("30m", 1_800), ("1.5d", 129_600), ("90s", 90)])
def test_intervals_have_a_unit(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["6", "h", "0s", "-1h", "6 hours"])
def test_what_is_no_interval_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="6h"):
        parse_duration_s(text)


def test_the_endpoint_may_leave_out_the_host() -> None:
    assert parse_endpoint(":9400") == ("", 9400)
    assert parse_endpoint("[::1]:9400") == ("::1", 9400)
    with pytest.raises(UsageError):
        parse_endpoint("9400")
