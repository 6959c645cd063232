"""A history in the shape that Jepsen's tests of Kafka, Redpanda and Bufstream give to theirs, there and back.

Written after the sources of these tests (`jepsen.tests.kafka`, `jepsen.redpanda.workload.queue`): what a generator asks
for, what a client makes of it, and what the end of each run looks like. No line is copied from a published run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sexton.checker import reference
from sexton.checker.allowed import Model
from sexton.checker.sabotage import sabotage
from sexton.checker.verdict import Judgement
from sexton.cli.main import app
from sexton.errors import CorruptHistoryError
from sexton.history import flat, run
from sexton.history.lines import to_line
from sexton.history.load import load
from sexton.history.op import Op, Run
from sexton.history.run import Description

SAYS = """\
{:process :nemesis, :type :info, :f :start-kill, :value :majority, :index 0, :time 1}
{:process 0, :type :invoke, :f :assign, :value (0 1), :index 1, :time 2}
{:process 0, :type :ok, :f :assign, :value (0 1), :index 2, :time 3}
{:process 1, :type :invoke, :f :send, :value [[:send 0 1]], :index 3, :time 4}
{:process 1, :type :ok, :f :send, :value ([:send 0 [0 1]]), :index 4, :time 5}
{:process 1, :type :invoke, :f :txn, :value [[:send 0 2] [:poll] [:send 1 1]], :index 5, :time 6}
{:process 1, :type :ok, :f :txn, :value [[:send 0 [1 2]] [:poll {}] [:send 1 [0 1]]], :index 6, :time 7}
{:process 1, :type :invoke, :f :txn, :value [[:send 0 3] [:poll]], :index 7, :time 8}
{:process 1, :type :fail, :f :txn, :value [[:send 0 [2 3]] [:poll]], :index 8, :time 9, \
:error {:type :abort, :abort-ok? true, :tried-commit? false, :definite? true, :body-error [:intentional-abort]}}
{:process 2, :type :invoke, :f :send, :value [[:send 0 4]], :index 9, :time 10}
{:process :nemesis, :type :info, :f :start-kill, :value {"n1" :killed, "n2" :killed}, :index 10, :time 11}
{:process 2, :type :info, :f :send, :value [[:send 0 4]], :index 11, :time 12, \
:error [:timeout "org.apache.kafka.common.errors.TimeoutException"], :end-process? true}
{:process 0, :type :invoke, :f :crash, :value nil, :index 12, :time 13}
{:process 0, :type :info, :f :crash, :value nil, :index 13, :time 14}
{:process 3, :type :invoke, :f :debug-topic-partitions, :value (0 1), :index 14, :time 15}
{:process 3, :type :ok, :f :debug-topic-partitions, :value {0 {:partition 0, :leader "n3", :isr ["n3" "n1"]}}, \
:index 15, :time 16}
{:process 3, :type :invoke, :f :assign, :value (0 1), :seek-to-beginning? true, :index 16, :time 17}
{:process 3, :type :ok, :f :assign, :value (0 1), :seek-to-beginning? true, :index 17, :time 18}
{:process 3, :type :invoke, :f :poll, :value [[:poll]], :poll-ms 1000, :index 18, :time 19}
"""
POLLS = "{:process 3, :type :ok, :f :poll, :value [[:poll %s]], :poll-ms 1000, :index 19, :time 20}\n"


def judged(path: Path) -> Judgement:
    loaded = load(path)
    return reference.judge(flat.to_ops(loaded.history), loaded.run, Model.JEPSEN)


@pytest.mark.parametrize(
    ("polled", "wrong"),
    [
        ("{0 [[0 1] [1 2] [3 4]], 1 [[0 1]]}", []),
        ("{0 [[0 1] [1 2] [2 3]], 1 [[0 1]]}", ["G1a"]),
        ("{0 [[0 1] [3 4]], 1 [[0 1]]}", ["int-poll-skip", "lost-write", "unseen"]),
        ("{0 [[0 1] [1 4]], 1 [[0 1]]}", ["inconsistent-offsets", "lost-write", "unseen"]),
    ],
)
def test_a_run_as_jepsens_clients_write_it_is_judged(tmp_path: Path, polled: str, wrong: list[str]) -> None:
    (tmp_path / "history.edn").write_text(SAYS + POLLS % polled)
    assert judged(tmp_path / "history.edn").wrong() == wrong


def test_what_was_imported_is_exported_as_what_it_was(tmp_path: Path) -> None:
    first, second = tmp_path / "history.edn", tmp_path / "again.edn"
    first.write_text(SAYS + POLLS % "{0 [[0 1] [1 2]], 1 [[0 1]]}")
    done = CliRunner().invoke(app, ["verify", "export", str(first), str(second)])
    assert done.exit_code == 0, done.output
    assert list(flat.to_ops(load(second).history)) == list(flat.to_ops(load(first).history))
    assert judged(second).canonical() == judged(first).canonical()


@pytest.mark.parametrize("name", ["lost-write", "G1a", "duplicate", "poll-skip"])
def test_a_run_of_ours_is_exported_with_all_that_jepsen_would_find_in_it(tmp_path: Path, name: str) -> None:
    planted = sabotage(name, 1).history
    run.write(tmp_path, Description(planted.run))
    (tmp_path / "history.jsonl").write_bytes(b"".join(map(to_line, planted.ops)))
    done = CliRunner().invoke(app, ["verify", "export", str(tmp_path), str(tmp_path / "out.edn")])
    assert done.exit_code == 0, done.output
    ours: list[Op] = list(flat.to_ops(load(tmp_path).history))
    uses_subscribe = load(tmp_path / "out.edn").run.uses_subscribe
    expected = reference.judge(ours, Run(uses_subscribe=uses_subscribe), Model.JEPSEN)
    found = judged(tmp_path / "out.edn")
    assert found.findings == expected.findings
    assert name in {finding.name for finding in found.findings}


def test_a_file_that_exists_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(SAYS)
    done = CliRunner().invoke(app, ["verify", "export", str(path), str(path)])
    assert done.exception is not None
    assert path.read_text() == SAYS


def test_a_poll_of_jepsens_abort_workload_has_no_values_and_is_refused(tmp_path: Path) -> None:
    """It tells a topic and offsets only: nothing that is judged here can be judged by that."""
    path = tmp_path / "history.edn"
    path.write_text('{:process 0, :type :ok, :f :poll, :value {:topic "t1", :offsets [1 2 3]}, :index 0, :time 1}\n')
    with pytest.raises(CorruptHistoryError, match=r"line 1: .*not a vector, list or set"):
        load(path)
