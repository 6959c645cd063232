"""Whose process a test speaks with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop.clients import Client
from tests.transactions.clients import ClientProcess, newest
from tests.transactions.kit import Kit

pytestmark = pytest.mark.cluster


def test_a_test_that_runs_alone_has_no_process_in_common_with_those_that_run_together(
    rdkafka: Kit, processes: Callable[[Client], ClientProcess]
) -> None:
    """They would take each other's answers: a process has one pipe."""
    assert rdkafka.process is not processes(newest("confluent-kafka"))
