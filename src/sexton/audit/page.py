"""An audit's report as a page: one file that needs no other, to read and to pass on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Final

from sexton.audit.classes import Class
from sexton.audit.judge import Case, PartitionReport, Verdict
from sexton.audit.keys import OnReplica
from sexton.audit.report import Report, why_unread
from sexton.audit.standing import Standing
from sexton.reproduce import shell

CASES_MAX: Final = 200
"""Most cases that are listed of one partition; --json and --export have more."""
QUIET_MAX: Final = 500
"""Partitions that are listed though there is nothing to tell of them."""
HOLES_MAX: Final = 400
"""Most holes that are drawn in the picture of one log."""

WIDTH: Final = 900
LEFT: Final = 110
LANE: Final = 26
BAR: Final = 14

CHIPS: Final = {Verdict.PARTIAL: "partial", Verdict.WILL_DIVERGE: "will-diverge"}
VALUE_BYTES_MAX: Final = 300


def page(report: Report, limit: int = CASES_MAX, *, shows_values: bool = False) -> str:
    began = datetime.fromtimestamp(report.began_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    hint = "" if shows_values else "Keys and values are left out; <code>--show-values</code> puts them here."
    body = f"""<h1>Audit: {_chip(report.verdict)}</h1>
<p class="verdict">{escape(_in_a_sentence(report))}</p>
<p>Begun {began}, took {report.took_s:.1f} s; {report.size_bytes / 1e6:,.1f} MB of replicas were read, and nothing was
changed. {hint}</p>
{_overview(report.partitions)}
{_known(report.partitions)}
{"".join(_partition(each, limit, shows_values) for each in report.partitions if _has_something(each))}
{_skipped(report)}
<footer>Made by <code>sexton audit</code>. <code>--plan</code> writes down how to repair what is wrong, and
<code>--only</code> looks at these keys again afterwards.</footer>"""
    return shell.document("sexton audit", body, (files("sexton.audit") / "page.css").read_text(encoding="utf-8"))


def _chip(verdict: Verdict) -> str:
    return f'<span class="chip {CHIPS.get(verdict, verdict.value)}">{escape(verdict.value)}</span>'


def _in_a_sentence(report: Report) -> str:
    count = len(report.partitions)
    wrong = [each for each in report.partitions if each.verdict.is_error]
    unknown = [each for each in report.partitions if not each.verdict.is_judged]
    parts = []
    if wrong:
        keys = sum(each.counts.differing_count - each.counts.changed_count for each in wrong)
        hidden = sum(max(each.counts.pinned.values(), default=0) for each in wrong)
        more = f", and {hidden:,} more are not shown by all" if hidden else ""
        parts.append(f"{len(wrong):,} of {count:,} partitions differ between replicas, in {keys:,} keys{more}")
    else:
        parts.append(f"no replica of {count:,} partitions shows its consumers anything else than the others")
    if unknown:
        parts.append(f"{len(unknown):,} could not be judged, or not in whole")
    return "; ".join(parts).capitalize() + "."


def _has_something(each: PartitionReport) -> bool:
    return bool(each.cases or each.findings or each.failures or each.unread or each.notes)


def _overview(partitions: Sequence[PartitionReport]) -> str:
    rows = ""
    quiet_count = 0
    for each in partitions:
        if not _has_something(each):
            quiet_count += 1
            if quiet_count > QUIET_MAX:
                continue
        name = f'<a href="#{escape(each.name)}">{escape(each.name)}</a>' if _has_something(each) else escape(each.name)
        brokers = ", ".join(str(one.replica.id.broker) for one in each.standings.values())
        found = ", ".join(
            f"{Class(number).label}: {count:,}" if count else Class(number).label
            for number, count in each.by_class.items()
        )
        rows += (
            f"<tr><th>{name}</th><td>{brokers}</td><td>{each.counts.key_count:,}</td><td>{escape(found)}</td>"
            f"<td>{_chip(each.verdict)}</td></tr>"
        )
    more = f"<p>{quiet_count - QUIET_MAX:,} more have nothing to tell.</p>" if quiet_count > QUIET_MAX else ""
    head = "<thead><tr><th>partition</th><th>replicas</th><th>keys</th><th>found</th><th></th></tr></thead>"
    return f'<table class="numbers">{head}<tbody>{rows}</tbody></table>{more}'


def _known(partitions: Sequence[PartitionReport]) -> str:
    """What the classes that occur mean."""
    found = sorted({number for each in partitions for number in each.by_class})
    if not found:
        return ""
    rows = "".join(
        f"<tr><th>{Class(number).label}</th><td>{escape(Class(number).meaning)}</td></tr>" for number in found
    )
    return f"<h2>What the words mean</h2><table>{rows}</table>"


def _partition(each: PartitionReport, limit: int, shows_values: bool) -> str:
    cases = each.cases[: min(limit, CASES_MAX)]
    left_out = each.counts.differing_count - sum(not case.key.is_pinned for case in cases)
    more = f"<p>{left_out:,} more keys differ.</p>" if left_out > 0 else ""
    findings = "".join(
        f'<p class="wrong">{Class(finding.is_class).label}: {escape(finding.because)}</p>' for finding in each.findings
    )
    failures = "".join(f"<p>{escape(label)}: {escape(str(error))}</p>" for label, error in each.failures)
    unread = "".join(
        f"<p>{escape(one.label)} was not read: {escape(why_unread(one))}</p>" for one in each.unread if not one.failure
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in each.notes)
    shown = "".join(_case(each, case, shows_values) for case in cases)
    return f"""<section id="{escape(each.name)}"><h2>{escape(each.name)} {_chip(each.verdict)}</h2>
{_replicas(each)}{_picture(each)}{findings}{failures}{unread}{notes}{shown}{more}</section>"""


def _replicas(each: PartitionReport) -> str:
    rows = ""
    for number, standing in each.standings.items():
        replica = standing.replica
        state = [
            word
            for word, holds in (
                ("leader", replica.is_leader),
                ("in sync", replica.is_in_sync),
                ("out of sync", replica.is_in_sync is False),
                ("stopped, or a copy", replica.is_down),
                ("lags", standing.lags),
            )
            if holds
        ]
        cells = (
            ", ".join(state),
            f"{standing.start_offset:,}",
            f"{standing.visible_end:,}",
            f"{standing.end_offset:,}",
            "" if replica.clean_offset is None else f"{replica.clean_offset:,}",
            f"{each.counts.behind.get(number, 0):,}",
            replica.place,
        )
        rows += f"<tr><th>{escape(replica.label)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    names = ("", "", "log start", "last stable", "read to", "clean to", "keys behind", "where")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


# ---- The logs side by side. ----


def _picture(each: PartitionReport) -> str:
    """Each replica's log by offset: what is there, holes, what consumers do not see, and the records in question."""
    standings = each.standings
    if not standings or not each.cases:
        return ""
    first = min(one.start_offset for one in standings.values())
    last = max(max(one.end_offset for one in standings.values()), first + 1)

    def x(offset: int) -> float:
        return LEFT + (WIDTH - LEFT - 10) * (offset - first) / (last - first)

    lanes = "".join(
        _lane(each, number, standing, place, x) for place, (number, standing) in enumerate(standings.items())
    )
    height = LANE * len(standings) + 24
    return (
        f'<figure class="scroll"><svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'class="logs"><title>The replicas of {escape(each.name)} by offset</title>{lanes}'
        f'<text x="{LEFT}" y="{height - 6}" class="scale">{first:,}</text>'
        f'<text x="{WIDTH - 10}" y="{height - 6}" text-anchor="end" class="scale">{last:,}</text></svg>'
        "<figcaption>By offset: light are holes, red what consumers are not shown. Dots are the records in question."
        "</figcaption></figure>"
    )


def _lane(each: PartitionReport, number: int, standing: Standing, place: int, x: object) -> str:
    assert callable(x)
    y = LANE * place + 6

    def bar(start: int, end: int, kind: str) -> str:
        width = max(1.0, x(end) - x(start))
        return f'<rect x="{x(start):.1f}" y="{y}" width="{width:.1f}" height="{BAR}" class="{kind}"/>'

    holes = sorted(standing.holes(standing.start_offset - 1), key=lambda gap: gap.start - gap.end)[:HOLES_MAX]
    dots = "".join(
        f'<circle cx="{x(one.shown.offset):.1f}" cy="{y + BAR / 2}" r="4" '
        f'class="{"record" if number in case.explained.accused else "fine"}"/>'
        for case in each.cases[:CASES_MAX]
        if (one := case.key.replicas.get(number)) is not None and one.shown is not None
    )
    hidden = (
        bar(standing.visible_end, standing.end_offset, "hidden") if standing.visible_end < standing.end_offset else ""
    )
    return (
        f'<text x="4" y="{y + 11}">{escape(standing.label)}</text>'
        f"{bar(standing.start_offset, standing.end_offset, 'log')}"
        f"{''.join(bar(gap.start, gap.end, 'hole') for gap in holes if gap.end <= standing.end_offset)}{hidden}{dots}"
    )


# ---- One key. ----


def _case(each: PartitionReport, case: Case, shows_values: bool) -> str:
    explained = case.explained
    told = Class(explained.is_class).label
    if not explained.is_sure:
        told += " or " + " or ".join(Class(other).label for other in explained.alternatives)
    rows = "".join(
        f'<tr class="{"wrong" if number in explained.accused else "right"}"><th>{escape(each.label(number))}</th>'
        f"<td>{escape(_reads(one, shows_values))}</td></tr>"
        for number, one in case.key.replicas.items()
    )
    facts = ", ".join(f"{name} {value}" for name, value in explained.facts.items() if name != "will_be")
    right = ", ".join(map(each.label, explained.right))
    return f"""<div class="case"><p><b>{escape(_name(case, shows_values))}</b>: {escape(told)}
{"(sure)" if explained.is_sure else "(which of them cannot be told)"}</p><table>{rows}</table>
<p>{escape(explained.because)}.</p><p>Right: {escape(right)} ({escape(explained.why_right)}).</p>
<p class="facts">{escape(facts)}</p></div>"""


def _name(case: Case, shows_values: bool) -> str:
    if shows_values and case.key.key is not None:
        return _text(case.key.key)
    return f"key #{case.key.name[:12]}"


def _reads(one: OnReplica, shows_values: bool) -> str:
    if one.shown is None:
        tombstone = one.newest is not None
        return f"nothing (a tombstone at {one.newest.offset:,})" if tombstone and one.newest is not None else "nothing"
    value = f": {_text(one.shown.value)}" if shows_values and one.shown.was_looked_up else ""
    return f"the record at offset {one.shown.offset:,}{value}"


def _text(data: bytes | None) -> str:
    if data is None:
        return "null"
    more = "…" if len(data) > VALUE_BYTES_MAX else ""
    try:
        return data[:VALUE_BYTES_MAX].decode() + more
    except UnicodeDecodeError:
        return f"0x{data[:VALUE_BYTES_MAX].hex()}{more}"


def _skipped(report: Report) -> str:
    rows = "".join(f"<li>{escape(each.place)}: {escape(each.reason)}</li>" for each in report.skipped)
    return f"<h2>Not read</h2><ul>{rows}</ul>" if rows else ""
