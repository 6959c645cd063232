"""What an operator may do about what an audit has found: steps with ready commands, in an order in which none makes
things worse. Nothing of it is ever carried out by us.

The one thing that mends a replica is to have it copied anew from one that is right, as long as one that is right is in
sync. Everything else in a plan is about getting there: who must not lead until then, and what was served already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sexton.audit.classes import Class
from sexton.audit.judge import PartitionReport
from sexton.audit.report import Report
from sexton.audit.standing import Standing


@dataclass(frozen=True, slots=True)
class _Repair:
    """A partition and who is wrong and right in it, by broker."""

    report: PartitionReport
    wrong: tuple[int, ...]
    right: tuple[int, ...]
    classes: tuple[Class, ...]

    @property
    def brokers(self) -> list[int]:
        """All of its replicas, right ones first, as far as they are known."""
        others = [each.id.broker for each in self.report.unread]
        return list(dict.fromkeys([*self.right, *others, *self.wrong]))


def plan(report: Report, bootstrap: str | None) -> str:
    """Markdown."""
    repairs = [_repair(each) for each in report.partitions if each.verdict.is_error]
    server = bootstrap or "BOOTSTRAP"
    lines = ["# What to do about what `sexton audit` has found", ""]
    if not repairs:
        return "\n".join([*lines, "No replica is wrong: there is nothing to do.", ""])
    lines += [
        "Nothing has been changed. Go through the steps of each partition in their order, and see with the last one",
        f"that they have helped. `kafka-*.sh` are Kafka's own tools; `{server}` is the cluster.",
        "",
    ]
    for repair in repairs:
        lines += _steps(repair, server)
    return "\n".join([*lines, *_check(bootstrap), *_avoid(repairs)])


def _repair(report: PartitionReport) -> _Repair:
    wrong = {number for case in report.cases for number in case.explained.accused}
    wrong |= {finding.replica for finding in report.findings}
    broker = {number: standing.replica.id.broker for number, standing in report.standings.items()}
    classes = {Class(number) for number in report.by_class} - {Class.RETENTION}
    return _Repair(
        report,
        tuple(broker[number] for number in sorted(wrong)),
        tuple(broker[number] for number in sorted(set(broker) - wrong)),
        tuple(sorted(classes)),
    )


def _steps(repair: _Repair, server: str) -> Iterator[str]:
    report = repair.report
    yield f"## {report.name}"
    yield ""
    yield f"Wrong: {_brokers(repair.wrong)}. Right: {_brokers(repair.right)}. Found: " + ", ".join(
        each.label for each in repair.classes
    )
    yield ""
    sources = [each for each in report.standings.values() if each.replica.id.broker in repair.right]
    if not any(_can_be_copied_from(each) for each in sources):
        yield from _nobody_is_right(repair)
        return
    wrong = {
        each.replica.id.broker: each for each in report.standings.values() if each.replica.id.broker in repair.wrong
    }
    down = [each for each in wrong.values() if each.replica.is_down]
    up = [broker for broker, each in wrong.items() if not each.replica.is_down]
    if up or not down:
        yield from _do_not_lead(repair, server)
        yield from _rebuild(repair, server)
    if down:
        yield from _wipe(repair, down)
    if Class.STUCK in repair.classes:
        yield from _stuck(repair, server)
    yield "**What was served.** If one of the wrong replicas has led since, consumers have got what it shows. "
    yield "`sexton audit ... --export differing.parquet --show-values` lists the keys to look at downstream."
    yield ""


def _can_be_copied_from(standing: Standing) -> bool:
    return standing.replica.is_in_sync is not False and not standing.lags


def _do_not_lead(repair: _Repair, server: str) -> Iterator[str]:
    topic, partition = repair.report.topic_partition
    leads = any(
        each.replica.is_leader for each in repair.report.standings.values() if each.replica.id.broker in repair.wrong
    )
    yield f"**0. {_brokers(repair.wrong).capitalize()} must not lead.**" + (
        " It leads now: consumers get what is wrong until this is done." if leads else " It does not lead now."
    )
    yield "This makes a replica that is right the preferred leader, and elects it:"
    yield ""
    yield from _reassign(repair, "order", repair.brokers, server)
    election = {"partitions": [{"topic": topic, "partition": partition}]}
    yield from _shell(
        f"cat > {repair.report.name}-elect.json <<'END'\n{json.dumps(election)}\nEND",
        f"kafka-leader-election.sh --bootstrap-server {server} --election-type preferred "
        f"--path-to-json-file {repair.report.name}-elect.json",
    )


def _rebuild(repair: _Repair, server: str) -> Iterator[str]:
    rest = [broker for broker in repair.brokers if broker not in repair.wrong]
    yield f"**1. Have {_brokers(repair.wrong)} copy it again.** First move it away, which deletes the wrong copy:"
    yield ""
    yield from _reassign(repair, "away", rest, server)
    yield "And back, once the former has said that it is complete:"
    yield ""
    yield from _reassign(repair, "back", repair.brokers, server)
    yield "While it is away there is one replica less: mind `min.insync.replicas`."
    yield ""


def _wipe(repair: _Repair, down: Sequence[Standing]) -> Iterator[str]:
    brokers = _brokers([each.replica.id.broker for each in down])
    yield f"**1. Before {brokers} starts again:** move its copy aside. It copies the partition again when it starts."
    yield "As long as it is down and the others serve, nothing is wrong for consumers. Brokers that are right"
    yield "start first: an empty replica must not be the one to lead."
    yield ""
    yield from _shell(
        *(
            f"mkdir -p {_aside(each.replica.place)} && mv {each.replica.place} {_aside(each.replica.place)}/"
            for each in down
        )
    )


def _aside(place: str) -> str:
    """Beside the log directory, for inside it a broker would take it for a partition."""
    return f"{place.rpartition('/')[0]}-aside"


def _reassign(repair: _Repair, step: str, replicas: Sequence[int], server: str) -> Iterator[str]:
    topic, partition = repair.report.topic_partition
    file = f"{repair.report.name}-{step}.json"
    moves = {"version": 1, "partitions": [{"topic": topic, "partition": partition, "replicas": list(replicas)}]}
    command = f"kafka-reassign-partitions.sh --bootstrap-server {server} --reassignment-json-file {file}"
    yield from _shell(f"cat > {file} <<'END'\n{json.dumps(moves)}\nEND", f"{command} --execute", f"{command} --verify")


def _nobody_is_right(repair: _Repair) -> Iterator[str]:
    yield "**No replica that is right can be copied from.** Do not rebuild any: what is right would be lost. Start the "
    yield "brokers that have it, or write the right values and tombstones again, with an ordinary producer; the keys "
    yield "are in `sexton audit ... --export differing.parquet --show-values`. Only you know what they should be."
    yield ""


def _stuck(repair: _Repair, server: str) -> Iterator[str]:
    topic, partition = repair.report.topic_partition
    for finding in repair.report.findings:
        if finding.is_class == Class.STUCK and "first_offset" not in finding.facts:
            yield f"**About what is stuck.** {finding.because}. Its log is right, and a broker works this offset out"
            yield "anew when it starts: a restart may be enough, in place of step 1. Audit again after it."
            yield ""
        elif finding.is_class == Class.STUCK:
            yield f"**About the stuck transaction.** {finding.because}. If that replica led, this would end it:"
            yield ""
            yield from _shell(
                f"kafka-transactions.sh --bootstrap-server {server} abort --topic {topic} --partition {partition} "
                f"--start-offset {finding.facts['first_offset']}"
            )
            yield "Rebuilding is better: that ABORT would hide there for good what the others show as committed."
            yield ""


def _check(bootstrap: str | None) -> Iterator[str]:
    where = f"--bootstrap {bootstrap}" if bootstrap else "--dirs ..."
    yield "## Has it helped?"
    yield ""
    yield "Keep the report of this audit (`--json > report.json`), and look at the same keys again:"
    yield ""
    yield from _shell(f"sexton audit {where} --only report.json")


def _avoid(repairs: Sequence[_Repair]) -> Iterator[str]:
    found = {each for repair in repairs for each in repair.classes}
    yield "## That it does not happen again"
    yield ""
    if found <= {Class.LOST_RECORD, Class.DIFFERENT_LOGS, Class.WRONG_CLAIM}:
        yield "This was not compaction. Look at disks and file systems, at `unclean.leader.election.enable`, and at "
        yield "how brokers were stopped."
    else:
        yield "A replica that was away for longer than `delete.retention.ms` misses what says that something is gone. "
        yield "Make that longer than any outage; wipe a broker's disk before it returns from a longer one; or use a "
        yield "system in which a tombstone or marker waits for every replica."
    yield ""


def _brokers(numbers: Sequence[int]) -> str:
    if not numbers:
        return "nobody"
    return ("broker " if len(numbers) == 1 else "brokers ") + ", ".join(map(str, numbers))


def _shell(*commands: str) -> Iterator[str]:
    yield "```sh"
    yield from commands
    yield "```"
    yield ""
