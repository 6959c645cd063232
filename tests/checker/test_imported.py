"""Histories that Jepsen wrote: the same anomalies with the same counts, and Jepsen's verdict."""

from __future__ import annotations

import io

from sexton.checker.allowed import Model
from sexton.checker.reference import judge
from sexton.checker.verdict import Judgement, Verdict
from sexton.history.edn import Names, read
from sexton.history.op import Run
from sexton.history.order import Order


def _judge(text: str) -> Judgement:
    names = Names()
    ops = list(read(io.BytesIO(text.encode()), Order("history.edn", is_imported=True), names))
    return judge(ops, Run(log_names=names.log_names(), value_names=names.value_names()), Model.JEPSEN)


def _counts(judgement: Judgement) -> dict[str, int]:
    return {finding.name: finding.count for finding in judgement.findings if finding.name != "realtime-lag"}


def test_spurious_zero_offsets_as_jepsen_found_them_in_bufstream() -> None:
    """Bufstream #3: a failed send is taken for one that was acknowledged at offset 0."""
    judgement = _judge(
        """{:index 0 :time 0 :process 0 :type :invoke :f :send :value [[:send 6 1]]}
{:index 1 :time 10 :process 0 :type :ok :f :send :value [[:send 6 [0 1]]]}
{:index 2 :time 20 :process 0 :type :invoke :f :send :value [[:send 6 26]]}
{:index 3 :time 30 :process 0 :type :ok :f :send :value [[:send 6 [0 26]]]}
{:index 4 :time 40 :process 1 :type :invoke :f :poll :value [[:poll]]}
{:index 5 :time 50 :process 1 :type :ok :f :poll :value [[:poll {6 [[0 1] [25 26]]}]]}
"""
    )
    assert judgement.verdict is Verdict.FALSE
    assert _counts(judgement) == {"duplicate": 1, "inconsistent-offsets": 1}
    found = {finding.name: finding.cases[0] for finding in judgement.findings}
    assert found["duplicate"].detail == {"offsets": [0, 25]}
    assert found["inconsistent-offsets"].values == (1, 26)


def test_a_committed_transaction_whose_record_every_poll_skips() -> None:
    """Bufstream #4: of a transaction over two logs one record is gone."""
    judgement = _judge(
        """{:index 0 :time 0 :process 7 :type :invoke :f :send :value [[:send 11 48] [:send 5 141]]}
{:index 1 :time 1 :process 8 :type :invoke :f :send :value [[:send 5 142] [:send 5 144]]}
{:index 2 :time 2 :process 7 :type :ok :f :send :value [[:send 11 [83 48]] [:send 5 [274 141]]]}
{:index 3 :time 3 :process 8 :type :ok :f :send :value [[:send 5 [273 142]] [:send 5 [277 144]]]}
{:index 4 :time 4 :process :nemesis :type :info :f :kill :value nil}
{:index 5 :time 5 :process 1 :type :invoke :f :poll :value [[:poll]]}
{:index 6 :time 6 :process 1 :type :ok :f :poll :value [[:poll {11 [[83 48]] 5 [[273 142] [277 144]]}]]}
"""
    )
    assert judgement.verdict is Verdict.FALSE
    counts = _counts(judgement)
    assert counts.pop("torn-transaction") == 1  # ours
    expected = {"lost-write": 1, "unseen": 1, "int-poll-skip": 1, "int-send-skip": 1, "G0": 1, "PL-1-cycle-exists": 1}
    assert counts == expected


def test_keywords_and_missing_fields_are_judged_by_what_there_is() -> None:
    judgement = _judge(
        """{:type :ok :f :txn :value [[:poll {:x [[0 :a] [1 :b]]}]]}
{:type :info :f :txn :value [[:send :x [1 :c]] [:send :x [3 :b]] [:send :x [4 :d]] [:send :x :a]]}
"""
    )
    counts = _counts(judgement)
    assert counts["inconsistent-offsets"] == 1
    assert counts["duplicate"] == 1
    assert "poll-skip" not in counts


def test_an_empty_history_is_not_valid_in_jepsen_either() -> None:
    judgement = _judge(
        """{:index 0 :time 0 :process 0 :type :invoke :f :assign :value [:x]}
{:index 1 :time 1 :process 0 :type :ok :f :assign :value [:x]}
"""
    )
    assert judgement.verdict is Verdict.FALSE
    assert _counts(judgement) == {"empty-transaction-graph": 1}
