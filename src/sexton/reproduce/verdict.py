"""The judgement: what was read, what the broker claims, what is true. Pure, and never more than was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sexton.reproduce.script import PROBE_KEY, told
from sexton.reproduce.truth import Truth
from sexton.reproduce.world import Sight


class Verdict(Enum):
    CLEAN = "clean"
    MISCLAIMED = "wrong claim"
    """What was read is right; what the broker says of a transaction is not."""
    CORRUPT = "corrupt"
    """What was read is wrong."""
    UNKNOWN = "unknown"
    """The script did not come to its end."""


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    read: str
    """By a consumer with read_committed, through the broker that was away."""
    claims: str
    """What that broker claims about its log."""
    true: str
    wrong: tuple[str, ...] = ()
    """Each difference, in words."""
    others_read: str = ""
    """The same, before it came back, through a broker that stayed."""
    second_read: str = ""
    """By librdkafka, just after; empty where it is not installed."""


def judge(sights: list[Sight], truth: Truth) -> Judgement:
    """Of the last reading. The one before it, through a broker that stayed, is quoted beside it."""
    last = sights[-1]
    misread = differences(last.fold, truth)
    if last.second_fold is not None and last.second_fold != last.fold:
        misread.append(f"librdkafka read {told(last.second_fold)} instead")
    misclaimed = false_claims(last, truth)
    verdict = Verdict.CORRUPT if misread else Verdict.MISCLAIMED if misclaimed else Verdict.CLEAN
    return Judgement(
        verdict=verdict,
        read=told(last.fold),
        claims=claims_of(last),
        true=truth_told(truth),
        wrong=(*misread, *misclaimed),
        others_read=told(sights[-2].fold) if len(sights) > 1 else "",
        second_read="" if last.second_fold is None else told(last.second_fold),
    )


def truth_told(truth: Truth) -> str:
    """What should be read, and what should not."""
    gone = "".join(f"; no {key}" for key in truth.gone_keys)
    values = ", ".join(f"{key}={value}" for key, value in truth.fold.items() if key != PROBE_KEY)
    return f"{values}{gone}".removeprefix("; ")


def differences(read: Mapping[str, str], truth: Truth) -> list[str]:
    """Between what was read and what should have been."""
    found = [
        f"{key}={value} was read, but {key} {_why_gone(key, truth)}"
        for key, value in read.items()
        if key not in truth.fold
    ]
    for key, value in truth.fold.items():
        what = "the record written just before" if key == PROBE_KEY else f"{key}={value}, which is committed,"
        if key not in read:
            found.append(f"{what} was not read")
        elif read[key] != value:
            found.append(f"{key}={read[key]} was read instead of {key}={value}")
    return found


def _why_gone(key: str, truth: Truth) -> str:
    endings = [each.is_committed for each in truth.transactions if key in each.changes]
    return "was only written in an aborted transaction" if endings and not any(endings) else "was deleted"


def false_claims(sight: Sight, truth: Truth) -> list[str]:
    """What the broker says of the script's transactions, and the script knows better."""
    found = []
    for offset in sight.aborted_offsets:
        transaction = truth.transaction_at(offset)
        if transaction is not None and transaction.is_committed:
            found.append(f"the committed transaction at offset {offset} is listed as aborted")
    if sight.open_offset is not None:
        transaction = truth.transaction_at(sight.open_offset)
        if transaction is not None and transaction.is_committed is not None:
            ended = "committed" if transaction.is_committed else "aborted"
            found.append(f"the {ended} transaction at offset {sight.open_offset} is held to be open")
    return found


def claims_of(sight: Sight) -> str:
    parts = []
    if sight.aborted_offsets:
        parts.append("aborted: the transaction at offset " + ", ".join(map(str, sight.aborted_offsets)))
    if sight.open_offset is not None:
        parts.append(f"open: the transaction at offset {sight.open_offset}")
    if sight.last_stable_offset < sight.high_watermark:
        parts.append(f"last stable offset {sight.last_stable_offset} of {sight.high_watermark}")
    return "; ".join(parts) or "no transaction open or aborted"
