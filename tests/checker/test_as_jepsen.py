"""What Jepsen's own tests of its Kafka checker show, from EDN to the count: the same situations, told anew, and as many
anomalies of the kind that each is about. (`jepsen.tests.kafka-test`; its histories are not copied.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from sexton.checker.allowed import Model
from sexton.checker.kernels import judge as kernels
from sexton.checker.reference import judge
from sexton.checker.verdict import Verdict
from sexton.checker.view import Options
from sexton.history.flat import to_ops
from sexton.history.load import load

Step = tuple[int, str, str, str]
"""Process, type, f, value: an invocation without a value comes before it."""


def sends(*records: str) -> str:
    return "[" + " ".join(f"[:send {record}]" for record in records) + "]"


def polls(*maps: str) -> str:
    return "[" + " ".join(f"[:poll {{{records}}}]" for records in maps) + "]"


FIVE_SENT: Step = (0, "ok", "send", sends(*(f":k [{offset} {offset + 20}]" for offset in range(6))))
FIRST_POLLED: Step = (1, "ok", "txn", polls(":k [[0 20]]"))
ABORTED: Step = (1, "fail", "txn", polls(":k [[1 21] [2 22]]"))
GONE_ON = polls(":k [[3 23] [4 24]]")

UNKNOWN_SEND: Step = (9, "info", "send", sends(":k 1", ":k 2", ":k 3", ":k 4"))


def asked_between(f: str, logs: str, anomaly: str) -> list[Step]:
    """Of two calls that go back, or over a record, what lies between them."""
    between = (0, "ok", f, logs)
    if anomaly == "nonmonotonic-send":
        first, second = sends(":k [3 1]", ":k [4 2]"), sends(":k [1 3]", ":k [2 4]")
        return [(0, "ok", "send", first), between, (0, "ok", "send", second)]
    if anomaly == "nonmonotonic-poll":
        first, second = polls(":k [[1 1] [2 2] [3 3]]"), polls(":k [[2 2] [3 3] [4 4]]")
    else:
        first, second = polls(":k [[1 1]]"), polls(":k [[3 3]]")
    other = (1, "ok", "poll", polls(":k [[2 2]]"))
    return [(0, "ok", "poll", first), other, between, (0, "ok", "poll", second), UNKNOWN_SEND]


CASES: list[tuple[str, int, list[Step]]] = [
    # An unknown send contradicts nobody, until another part of it has been read.
    ("inconsistent-offsets", 0, [(0, "info", "send", sends(":k [0 1]", ":m 1")), (1, "ok", "send", sends(":k [0 2]"))]),
    (
        "inconsistent-offsets",
        1,
        [
            (0, "info", "send", sends(":k [0 1]", ":m 1")),
            (1, "ok", "send", sends(":k [0 2]")),
            (2, "ok", "poll", polls(":m [[5 1]]")),
        ],
    ),
    ("inconsistent-offsets", 1, [(0, "ok", "send", sends("11 [537 641]")), (1, "ok", "send", sends("11 [537 645]"))]),
    ("G1a", 1, [(0, "fail", "send", sends(":k 2", ":m 3")), (1, "ok", "poll", polls(":k [[0 2]]"))]),
    (
        "lost-write",
        2,
        [
            (0, "ok", "send", sends(":k [0 1]")),
            (0, "ok", "send", sends(":k [1 2]", ":k [3 4]")),
            (1, "info", "send", sends(":k 3")),
            (0, "ok", "poll", polls(":k [[2 3]]")),
        ],
    ),
    (
        "lost-write",
        1,
        [
            (0, "ok", "send", sends(":k [0 1]")),
            (0, "ok", "send", sends(":k [0 2]", ":k [2 3]")),
            (0, "ok", "poll", polls(":k [[0 2] [2 3]]")),
        ],
    ),
    # Of an unknown send, whatever was read proves the rest.
    *(
        (
            "lost-write",
            count,
            [
                (0, "info", "send", sends(":k 1", ":m [0 2]")),
                (1, "info", "send", sends(":m 3")),
                *seen,
                (3, "ok", "poll", polls(":m [[1 3]]")),
            ],
        )
        for count, seen in ((0, []), (1, [(2, "ok", "poll", polls(":k [[0 1]]"))]))
    ),
    # Skipped and gone back: a subscription that does not name the log forgets, one that does keeps.
    *(
        (anomaly, count, asked_between(f, logs, anomaly))
        for anomaly in ("poll-skip", "nonmonotonic-poll", "nonmonotonic-send")
        for f in ("assign", "subscribe")
        for logs, count in (("[:k :m]", 1), ("[:m]", 0))
    ),
    # After an abort a consumer is where it was before.
    ("poll-skip", 0, [FIVE_SENT, FIRST_POLLED, ABORTED, (1, "info", "txn", ABORTED[3]), (2, "ok", "txn", ABORTED[3])]),
    (
        "poll-skip",
        2,
        [FIVE_SENT, FIRST_POLLED, ABORTED, (1, "fail", "txn", GONE_ON), (1, "ok", "txn", polls(":k [[5 25]]"))],
    ),
    ("poll-skip", 1, [FIVE_SENT, FIRST_POLLED, ABORTED, (1, "info", "txn", GONE_ON)]),
    (
        "int-poll-skip",
        2,
        [
            (1, "info", "send", sends(":k 1", ":k 2", ":k 4")),
            (0, "ok", "poll", polls(":k [[1 1] [4 4]]")),
            (0, "ok", "poll", polls(":k [[1 1]]", ":k [[4 4]]")),
            (0, "ok", "poll", polls(":k [[2 2]]")),
        ],
    ),
    (
        "int-send-skip",
        1,
        [
            (0, "ok", "send", sends(":k [1 1]", ":k 3")),
            (1, "info", "send", sends(":k 2")),
            (2, "ok", "poll", polls(":k [[2 2] [3 3]]")),
        ],
    ),
    (
        "int-nonmonotonic-poll",
        2,
        [
            (9, "info", "send", sends(":k 1", ":k 2", ":k 3")),
            (0, "ok", "poll", polls(":k [[3 3] [1 1]]")),
            (0, "ok", "poll", polls(":k [[2 2] [3 3]]", ":k [[3 3]]")),
        ],
    ),
    (
        "int-nonmonotonic-send",
        2,
        [
            (0, "ok", "send", sends(":k [3 3]", ":k [1 1]")),
            (8, "info", "send", sends(":m 4", ":m 2")),
            (9, "info", "send", sends(":m 3")),
            (0, "ok", "poll", polls(":m [[2 2] [3 3] [4 4]]")),
        ],
    ),
    (
        "duplicate",
        1,
        [
            (0, "ok", "send", sends(":k [1 1]")),
            (1, "info", "send", sends(":k 2")),
            (2, "ok", "poll", polls(":k [[2 2] [3 1]]")),
        ],
    ),
    # Many values at the same two offsets: each is there twice, and both offsets are inconsistent.
    *(
        (
            anomaly,
            count,
            [
                step
                for value in range(10)
                for step in (
                    (0, "ok", "send", sends(f":k [0 {value}]")),
                    (1, "ok", "poll", polls(f":k [[1 {value}]]")),
                )
            ],
        )
        for anomaly, count in (("duplicate", 10), ("inconsistent-offsets", 2))
    ),
    # What a failed send says of its offset does not count; what a failed poll was given does.
    (
        "duplicate",
        1,
        [
            (0, "ok", "send", sends(":k [1 5]")),
            (0, "fail", "send", sends(":k [2 6]")),
            (1, "fail", "poll", polls(":k [[11 5] [12 6]]")),
        ],
    ),
    ("precommitted-read", 1, [(0, "ok", "txn", "[[:send :k [0 1]] [:poll {:k [[0 1]]}]]")]),
]


def written(path: Path, steps: list[Step], is_at_once: bool = False) -> Path:
    heads = [f":process {process}, :f :{f}" for process, _, f, _ in steps]
    begun = [f":type :invoke, {head}, :value nil" for head in heads]
    ended = [f":type :{step[1]}, {head}, :value {step[3]}" for head, step in zip(heads, steps, strict=True)]
    lines = [*begun, *ended] if is_at_once else [it for pair in zip(begun, ended, strict=True) for it in pair]
    path.write_text("".join(f"{{:index {index}, :time {index}, {line}}}\n" for index, line in enumerate(lines)))
    return path


def counted(path: Path, ww_deps: bool = True) -> dict[str, int]:
    loaded = load(path)
    options = Options(ww_deps=ww_deps)
    found = judge(to_ops(loaded.history), loaded.run, Model.JEPSEN, options=options)
    assert kernels.judge(loaded.history, loaded.run, Model.JEPSEN, options=options).canonical() == found.canonical()
    return {finding.name: finding.count for finding in found.findings}


@pytest.mark.parametrize(("anomaly", "count", "steps"), CASES)
def test_as_many_as_jepsen_finds(tmp_path: Path, anomaly: str, count: int, steps: list[Step]) -> None:
    assert counted(written(tmp_path / "history.edn", steps)).get(anomaly, 0) == count


CYCLES: list[tuple[str, bool, list[Step]]] = [
    (
        "G0",
        True,
        [(0, "ok", "send", sends(":k [0 1]", ":m [1 1]")), (1, "ok", "send", sends(":k [1 2]", ":m [0 2]"))],
    ),
    (
        "G1c",
        False,
        [
            (0, "ok", "txn", "[[:send :k [0 1]] [:poll {:m [[0 2]]}]]"),
            (1, "ok", "txn", "[[:send :m [0 2]] [:poll {:k [[0 1]]}]]"),
        ],
    ),
    (
        "G1c",
        True,
        [
            (0, "ok", "txn", "[[:send :k [0 1]] [:send :m [2 3]]]"),
            (1, "ok", "txn", "[[:poll {:k [[0 1]]}] [:send :m [1 2]]]"),
        ],
    ),
]


@pytest.mark.parametrize(("anomaly", "ww_deps", "steps"), CYCLES)
def test_one_cycle_as_jepsen_finds(tmp_path: Path, anomaly: str, ww_deps: bool, steps: list[Step]) -> None:
    assert counted(written(tmp_path / "history.edn", steps, is_at_once=True), ww_deps)[anomaly] == 1


def test_a_history_in_which_nothing_happened_is_not_valid(tmp_path: Path) -> None:
    loaded = load(written(tmp_path / "history.edn", [(0, "ok", "assign", "[:k]")]))
    assert judge(to_ops(loaded.history), loaded.run, Model.JEPSEN).verdict is not Verdict.TRUE
