"""A client's process: what becomes of an operation whose client dies."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

from sexton.history.op import F, Send, Type
from sexton.verify.generator import Ask
from sexton.verify.process import ClientProcess
from sexton.verify.session import Completion, Options, Topics

START_TIMEOUT_S = 60


def next_answer(process: ClientProcess) -> Completion | None:
    assert select.select([process], [], [], START_TIMEOUT_S)[0]
    return process.answer()


def test_nobody_knows_what_came_of_an_operation_whose_client_was_killed(tmp_path: Path) -> None:
    nowhere = Options(driver="confluent", bootstrap="127.0.0.1:1", transactional_id="id", group="g")
    process = ClientProcess("confluent-kafka", nowhere, tmp_path / "log")
    process.ask(Ask(F.SEND, (Send(0, 1),)), {0: ("t", 0)}, {"t": Topics(1, 1)})
    assert next_answer(process) is None, "it has started, and is at it"
    os.kill(process.pid, signal.SIGKILL)
    completion = next_answer(process)
    assert completion is not None
    assert completion.type is Type.INFO
    assert "has ended" in completion.error
    process.end()


def test_who_cannot_make_its_client_is_told_as_info(tmp_path: Path) -> None:
    wrong = Options(driver="nonsense", bootstrap="", transactional_id="id", group="g")
    process = ClientProcess("confluent-kafka", wrong, tmp_path / "log")
    process.ask(Ask(F.SEND, (Send(0, 1),)), {0: ("t", 0)}, {"t": Topics(1, 1)})
    completion = next_answer(process)
    assert completion is not None
    assert completion.type is Type.INFO
    assert "nonsense" in completion.error
    process.end()
