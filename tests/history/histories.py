"""Histories for tests of formats: any that may be written, and some by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from sexton.history.op import (
    NAMES_LOGS,
    NAMES_OFFSETS,
    NEMESIS,
    READS_AND_WRITES,
    UNKNOWN,
    F,
    MicroOp,
    Op,
    Poll,
    Record,
    Send,
    Span,
    Type,
)

SOME = settings(max_examples=50, deadline=None)
"""How many histories a test tries. Drawing one takes longer than what is tested."""

INT64_MAX = (1 << 63) - 1

logs = st.integers(0, 5) | st.integers(0, (1 << 31) - 1)
numbers = st.integers(0, 50) | st.integers(0, INT64_MAX)
numbers_or_unknown = st.just(UNKNOWN) | numbers
records = st.builds(Record, numbers_or_unknown, numbers, numbers_or_unknown, st.booleans())
sends = st.builds(Send, logs, numbers, numbers_or_unknown, numbers_or_unknown, st.booleans())
polls = st.builds(Poll, st.dictionaries(logs, st.lists(records, min_size=1, max_size=3).map(tuple), max_size=3))
micro_ops: st.SearchStrategy[MicroOp] = sends | polls
texts = st.text(max_size=8) | st.sampled_from(["timeout", ":x", '"', "\\", "\x00", "é\u2028"])
plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-INT64_MAX, INT64_MAX) | texts | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
exts: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.dictionaries(texts, plain, max_size=3)
unknown_fs = st.sampled_from(["kill", "start-partition", "frob?", "read"])


@st.composite
def contents(draw: st.DrawFn, f: str) -> dict[str, Any]:
    """The fields that an operation has beside index, time, process and type."""
    fields: dict[str, Any] = {"f": f, "ext": draw(exts), "error": draw(st.just("") | texts)}
    if f in READS_AND_WRITES:
        fields["micro_ops"] = tuple(draw(st.lists(micro_ops, max_size=4)))
        fields["spans"] = draw(st.dictionaries(logs, st.builds(Span, numbers, numbers), max_size=2))
        fields["rebalanced"] = draw(st.frozensets(logs, max_size=2))
    elif f in NAMES_LOGS:
        fields["logs"] = tuple(draw(st.lists(logs, max_size=4)))
    elif f in NAMES_OFFSETS:
        fields["offsets"] = draw(st.dictionaries(logs, numbers_or_unknown, max_size=3))
    elif draw(st.booleans()):
        fields["ext"] = {**fields["ext"], "value": draw(plain.filter(lambda value: value is not None))}
    else:
        fields["ext"].pop("value", None)
    if fields["ext"].get("value", 0) is None:
        del fields["ext"]["value"]
    fields["node"] = draw(st.integers(UNKNOWN, 9))
    fields["client"] = draw(st.sampled_from(["", "confluent-kafka 2.6.1"]) | texts)
    return fields


@st.composite
def histories(draw: st.DrawFn) -> list[Op]:
    """At least one operation. Each process does one at a time; a nemesis does what it wants."""
    ops: list[Op] = []
    is_open: set[int] = set()
    time_ns = draw(st.integers(0, 1 << 40))
    for index in range(draw(st.integers(1, 12))):
        process = draw(st.integers(0, 4) | st.just(NEMESIS) | st.just(UNKNOWN))
        if process >= 0:
            type_ = draw(st.sampled_from([Type.OK, Type.FAIL, Type.INFO])) if process in is_open else Type.INVOKE
            is_open ^= {process}
        else:
            type_ = draw(st.sampled_from(Type))
        f = draw(unknown_fs if process == NEMESIS else st.sampled_from([*F]).map(str) | unknown_fs)
        time_ns += draw(st.integers(0, 1 << 40))
        at_ns = draw(st.sampled_from([time_ns, time_ns, time_ns, UNKNOWN]))
        ops.append(Op(index=index, time_ns=at_ns, process=process, type=type_, **draw(contents(f))))
    return ops


def op(index: int = 0, process: int = 0, type_: Type = Type.INVOKE, f: str = F.TXN, *done: MicroOp, **more: Any) -> Op:
    return replace(Op(index, index * 10, process, type_, f, done), **more)


EXAMPLE = [
    op(0, NEMESIS, Type.INFO, "kill", ext={"value": {"n1": "killed"}}),
    op(1, 23, Type.INVOKE, F.SUBSCRIBE, logs=(5, 6)),
    op(2, 23, Type.OK, F.SUBSCRIBE, logs=(5, 6)),
    op(3, 23, Type.INVOKE, F.TXN, Poll(), Send(6, 8)),
    op(4, 24, Type.INVOKE, F.SEND, Send(5, 9, key=3)),
    op(
        *(5, 23, Type.OK, F.TXN, Poll({5: (Record(272, 140), Record(273, 142, 7, True))}), Send(6, 8, 7)),
        spans={5: Span(270, 274)},
        rebalanced=frozenset({6, 5}),
        node=2,
        client="confluent-kafka 2.6.1",
        ext={"pid": 4},
    ),
    op(6, 24, Type.INFO, F.SEND, Send(5, 9, key=3), error="timeout: 10 s"),
    op(7, 25, Type.INVOKE, F.CRASH),
    op(8, 25, Type.INFO, F.CRASH),
    op(9, 26, Type.INVOKE, F.COMMIT, offsets={5: 274, 6: 8}),
    op(10, 26, Type.FAIL, F.COMMIT, offsets={5: 274, 6: 8}),
    op(11, 27, Type.INVOKE, F.POLL, Poll()),
]
