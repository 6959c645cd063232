"""A run as one page that needs no other file: the verdict in words, what was found and why one should believe it, and
what clients saw over time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sexton.checker.allowed import Model, weight
from sexton.checker.anomalies import ANOMALIES, Weight
from sexton.checker.series import consume_counts
from sexton.checker.verdict import Verdict
from sexton.checker.view import View, prepare
from sexton.history.op import UNKNOWN, Op
from sexton.history.run import Description
from sexton.reproduce import shell
from sexton.simulate.plan import Profile
from sexton.verify import samples
from sexton.verify.report.bars import Bar, bars, never_came
from sexton.verify.report.broker_logs import NO_LOGS, BrokerLogs
from sexton.verify.report.evidence import Evidence, concerns
from sexton.verify.samples import Sample
from sexton.verify.systems import CLOUD, INDEPENDENT, SEXTON
from sexton.verify.workloads.known import WORKLOADS

NAME: Final = "report.html"
CLUSTER: Final = "cluster"
"""Of a run: where brokers' directories are."""
BEGAN: Final = "began-ms"
"""In a run's description: when its time was 0, in milliseconds since 1970."""
NS: Final = 1e9
CASES_MAX: Final = 5
"""Of one anomaly. The rest, as far as it was kept, is in results.json."""

NO_PICTURE: Final = "<p>There is no picture: <code>pip install 'sexton[verify]'</code> brings what draws it.</p>"
OBVIOUS: Final = frozenset({"topic_prefix"})


def write(directory: Path, ops: Iterable[Op], description: Description, results: Mapping[str, Any]) -> Path:
    """`results` is what results.json has."""
    path = directory / NAME
    logs = BrokerLogs.of(directory / CLUSTER, int(description.more.get(BEGAN, 0)))
    looks = samples.read(directory / samples.NAME) if (directory / samples.NAME).exists() else []
    text = page(prepare(ops, description.run), description, results, logs, looks)
    path.write_text(text, encoding="utf-8")
    return path


def page(
    view: View,
    description: Description,
    results: Mapping[str, Any],
    logs: BrokerLogs = NO_LOGS,
    looks: Sequence[Sample] = (),
) -> str:
    in_force = bars(view.nemesis, view.end_ns)
    name = description.run.name or "a history"
    body = f"""<h1>{escape(name)}: <span class="chip {results["verdict"]}">{results["verdict"]}</span></h1>
{_verdict(results)}
{_tested(view, description, in_force)}
<h2 id="findings">What was found</h2>
{_findings(results)}
{_obligations(results)}
{_counted(view, results)}
<h2 id="time">Over time</h2>
<figure class="scroll">{_picture(view, in_force, results, looks)}</figure>
{_cases(view, in_force, results, logs, description.more.get("system"))}
<footer>Made by <code>sexton verify</code> from <code>history.jsonl</code>, <code>results.json</code> and
<code>test.json</code>, which lie beside it; <code>sexton verify check</code> judges the history again.</footer>"""
    return shell.document(f"sexton verify: {name}", body, style())


def style() -> str:
    return (files("sexton.verify.report") / "page.css").read_text(encoding="utf-8")


def final_reads_ns(view: View) -> int:
    """When they began; UNKNOWN if there were none."""
    begun = (call.begin_ns for call in view.calls if call.op.ext.get("final") and call.begin_ns != UNKNOWN)
    return min(begun, default=UNKNOWN)


def wrong(results: Mapping[str, Any]) -> list[str]:
    """What makes the verdict false."""
    names = (each["name"] for each in results["anomalies"] if each["name"] not in results["allowed"])
    return [name for name in names if weight(name, Model(results["model"])) is Weight.WRONG]


def _verdict(results: Mapping[str, Any]) -> str:
    model = f"the model <i>{escape(results['model'])}</i>"
    match results["verdict"]:
        case Verdict.TRUE:
            told = f"Nothing was found that {model} does not allow, and all was tested that should have been."
        case Verdict.FALSE:
            links = ", ".join(f'<a href="#{name}">{name}</a>' for name in wrong(results))
            told = f"Something happened that {model} does not allow: {links}."
        case _:
            missing = "; ".join(escape(each["name"]) for each in results["obligations"] if not each["met"])
            told = (
                "Nothing was found that is not allowed, and that proves little: "
                f"{'not seen: ' + missing if missing else 'the search was not finished, or not all was read'}."
            )
    return f'<p class="verdict">{told}</p>'


def _tested(view: View, description: Description, in_force: Iterable[Bar]) -> str:
    more = description.more
    counts: dict[str, int] = {}
    for call in view.calls:
        name = call.op.type.name.lower()
        counts[name] = counts.get(name, 0) + 1
    faults: dict[str, int] = {}
    for bar in in_force:
        faults[bar.fault] = faults.get(bar.fault, 0) + 1
    clients = sorted({call.op.client for call in view.calls if call.op.client})
    told = {
        "system": _system(more),
        "workload": description.run.workload or "unknown",
        "clients": ", ".join(clients) or "unknown",
        "operations": f"{len(view.calls):,}: "
        + ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())),
        "logs": f"{len(view.orders):,}",
        "faults": ", ".join(f"{name} ({count})" for name, count in faults.items()) or "none",
        "asked for, and never came": ", ".join(never_came(_asked_faults(more), view.nemesis)),
        "seed": more.get("seed", "unknown"),
        "took": f"{view.end_ns / NS:.0f} s",
    }
    if "options" in more:
        told["again"] = f"sexton verify replay {description.run.name}"
    if (profile := _nearest_profile(description)) is not None:
        told["where a seed is the same run"] = f"sexton simulate --profile {profile}"
    rows = "".join(f"<tr><th>{name}</th><td>{escape(str(it))}</td></tr>" for name, it in told.items() if it != "")
    settings = "".join(
        f"<tr><th>{escape(name)}</th><td><code>{escape(json.dumps(it))}</code></td></tr>"
        for group in ("options", "broker-settings", "client-settings", "topic-settings", "versions")
        for name, it in dict(more.get(group, {})).items()
        if name not in OBVIOUS
    )
    details = (
        f"<details><summary>Settings and versions</summary><table>{settings}</table></details>" if settings else ""
    )
    return f'<table class="tested">{rows}</table>{details}'


def _system(more: Mapping[str, Any]) -> str:
    name, lie = str(more.get("system", "unknown")), more.get("lie")
    return f"{name}, through a proxy that lies to clients on purpose: {lie}" if lie else name


def _asked_faults(more: Mapping[str, Any]) -> Sequence[str]:
    return list(more.get("options", {}).get("faults", ()))


def _nearest_profile(description: Description) -> Profile | None:
    """Of the simulator, for a run of Sexton: what repeats exactly is there."""
    more, workload = description.more, WORKLOADS.get(description.run.workload)
    if more.get("system") != SEXTON or workload is None:
        return None
    if more.get("storage") == CLOUD:
        return Profile.LEVELED if workload.compacts else Profile.CLOUD
    if workload.compacts:
        return Profile.COMPACTION
    return Profile.TRANSACTIONS if more.get("options", {}).get("is_transactional") else Profile.PLAIN


def _findings(results: Mapping[str, Any]) -> str:
    if not results["anomalies"]:
        return "<p>No anomaly, not even one that is allowed.</p>"
    bad = set(wrong(results))
    rows = ""
    for found in sorted(results["anomalies"], key=lambda each: each["name"] not in bad):
        name = found["name"]
        reason = results["allowed"].get(name)
        chip = (
            '<span class="chip false">wrong</span>'
            if name in bad
            else f"allowed: {escape(reason)}"
            if reason
            else "told only"
        )
        rows += (
            f'<tr><th><a href="#{name}">{name}</a></th><td>{found["count"]:,}</td><td>{chip}</td>'
            f"<td>{escape(ANOMALIES[name].meaning)}</td></tr>"
        )
    head = "<thead><tr><th>anomaly</th><th>count</th><th></th><th>what it means</th></tr></thead>"
    return f"<table>{head}<tbody>{rows}</tbody></table>"


def _obligations(results: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<li class="{"met" if each["met"] else "unmet"}">{escape(each["name"])}'
        f"{'' if each['met'] else ': <b>not seen</b>'}</li>"
        for each in results["obligations"]
    )
    if not rows:
        return ""
    return f"<p>What must have happened for silence to mean anything:</p><ul>{rows}</ul>"


def _counted(view: View, results: Mapping[str, Any]) -> str:
    """What is no anomaly: what the workload counted, what was given to one process more than once, and what was not
    judged at all."""
    told = [f"{what}: {times:,}" for what, times in results.get("counted", {}).items()]
    consumed = consume_counts(view).distribution
    if consumed:
        again = sum(count for times, count in consumed.items() if times > 1)
        often = f", at most {max(consumed)} times" if again else ""
        given = f"of {sum(consumed.values()):,} records that a subscribed process was given"
        told.append(f"{given}, {again:,} were given to it more than once{often}")
    told += [f"not judged: {what}: {count}" for what, count in results.get("notes", {}).items()]
    rows = "".join(f"<li>{escape(each)}</li>" for each in told)
    return f"<p>What was counted, and proves nothing:</p><ul>{rows}</ul>" if rows else ""


def _picture(view: View, in_force: list[Bar], results: Mapping[str, Any], looks: Sequence[Sample]) -> str:
    if find_spec("matplotlib") is None:
        return NO_PICTURE
    if not view.calls:
        return "<p>Nothing was done.</p>"
    from sexton.verify.report import plots

    bad = set(wrong(results))
    logs = [log for found in results["anomalies"] if found["name"] in bad for log in _logs(found)]
    return plots.svg(view, in_force, final_reads_ns(view), logs, looks)


def _logs(found: Mapping[str, Any]) -> list[int]:
    return [log for case in found["cases"] for log in concerns(case)]


def _broken(name: str) -> str:
    """Names the rules of Sexton that the anomaly breaks, if any."""
    rules = ANOMALIES[name].rules
    told = f"{'s' * (len(rules) > 1)} {', '.join(map(str, rules))}"
    return f" It breaks Sexton's rule{told} (docs/rules.md)." if rules else ""


def _cases(view: View, in_force: list[Bar], results: Mapping[str, Any], logs: BrokerLogs, system: object) -> str:
    bad = set(wrong(results))
    evidence = Evidence.of(view, in_force, logs)
    has_rules = system in (SEXTON, INDEPENDENT)
    sections = ""
    for found in sorted(results["anomalies"], key=lambda each: each["name"] not in bad):
        name = found["name"]
        shown = "".join(
            f"<details{' open' if name in bad and place == 0 else ''}><summary>Case {place + 1}</summary>"
            f"{evidence.html(case)}</details>"
            for place, case in enumerate(found["cases"][:CASES_MAX])
        )
        more = found["count"] - min(len(found["cases"]), CASES_MAX)
        rest = f"<p>{more:,} more were found; <code>results.json</code> names the worst.</p>" if more else ""
        sections += (
            f'<section id="{name}"><h2>{name}</h2><p>{escape(ANOMALIES[name].meaning)} The evidence: '
            f"{escape(ANOMALIES[name].evidence)}.{_broken(name) if has_rules else ''}</p>{shown}{rest}</section>"
        )
    return sections
