"""A whole run: its directory, its system, its workload, and the judgement at the end.

The directory has `test.json`, `history.jsonl` and the same as Parquet, `faults.jsonl`, `samples.parquet`,
`results.json`, `report.html`, `clients.log`, and the brokers' directories below `cluster/`, of which only the logs stay
unless the data is asked for.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from sexton.checker import reference
from sexton.checker.allowed import Model
from sexton.checker.evidence import canonical_json
from sexton.checker.verdict import Judgement, Obligation, Verdict, merge
from sexton.checker.view import Options
from sexton.client.security.errors import LoginFailedError
from sexton.client.security.files import security_from
from sexton.client.security.properties import OPEN
from sexton.errors import NotAHistoryError, SextonError
from sexton.harness import disks
from sexton.harness.asking import Door
from sexton.harness.errors import HarnessError
from sexton.harness.proxy import Proxy
from sexton.harness.systems import NODES, kafka_version
from sexton.history import flat
from sexton.history import run as description
from sexton.history.flat import FlatHistory
from sexton.history.load import load
from sexton.history.op import Op, Run
from sexton.history.order import Order
from sexton.history.run import Description
from sexton.ports.tls import TlsFailedError
from sexton.verify import outside, probes, systems
from sexton.verify.clients import known, secured
from sexton.verify.faults.grave import Grave
from sexton.verify.faults.known import FAULTS, pointless
from sexton.verify.faults.services import Metastore
from sexton.verify.generator import Workload
from sexton.verify.lies import LIES
from sexton.verify.plan import ACKS_ALL, Plan
from sexton.verify.report import page
from sexton.verify.report.page import BEGAN, CLUSTER
from sexton.verify.run_history import Listener
from sexton.verify.runner import Runner
from sexton.verify.sharding import ShardedWorkload, Shards
from sexton.verify.systems import System
from sexton.verify.workloads.known import QUEUE, WORKLOADS, Asked

RESULTS: Final = "results.json"
PLAIN_OPS_MAX: Final = 20_000
"""Up to here the plain judge takes seconds; compiling the other one takes longer, the first time."""
PIECE_OPS: Final = 100_000
"""Of a history, as many at once are made into arrays, for Parquet."""
DIGEST_CHARS: Final = 16
INACCURACY_MS: Final = 1_000
"""Of brokers' clocks, beside what was done to them: what they do at a time they do a little later."""


NOT_RUN: Final = (SextonError, OSError, subprocess.SubprocessError)
"""What keeps one of many runs from its end, and is no reason not to begin the next: a server that does not start, a
disk that is full, a command that takes too long."""


class ExcludedFaultError(HarnessError):
    exit_code = 64


class PointlessFaultError(HarnessError):
    exit_code = 64


class NotReachedError(HarnessError):
    """A cluster that exists, and does not answer."""

    exit_code = 69


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a person asked for, beside the plan."""

    system: str
    """One of ours; or, if `is_existing`, the addresses of a cluster that is not ours."""
    is_existing: bool = False
    command_config: Path | None = None
    """Of such a cluster: the file that says how clients get in. What it says is never written down."""
    nodes: int = NODES
    metastore: str = systems.SQLITE
    controllers: int = 0
    """Of Kafka, processes that are nothing else. 0: they are in its brokers."""
    storage: str = systems.LOCAL
    """Where topics are: on brokers' disks, or in a store (cloud topics)."""
    workload: str = QUEUE
    asked: Asked = field(default_factory=Asked)
    directory: Path
    keep_data: bool = False
    judges_corruption: bool = False
    """Of Apache Kafka, too, which promises nothing about files that somebody has damaged."""
    allows_admin: bool = False
    """Of a cluster that is not ours: whether leaders and replicas of our topics may move there."""
    model: Model = Model.KAFKA
    ignored: tuple[str, ...] = ()
    """Anomalies that are allowed as well."""
    patience_ms: int = Options().patience_ms
    """Of a consumer that stands still when all is healed, before it counts as stuck."""
    has_page: bool = True
    """Drawing it takes longer than to judge a short run; `report` writes it as well."""
    lie: str = ""
    """What clients are told between them and honest brokers: then a verdict of true would be wrong."""


def run(wanted: Wanted, plan: Plan, listener: Listener) -> Judgement:
    known.prepare(plan.clients)
    check_faults_hit(plan, wanted.workload, wanted.asked)
    if wanted.is_existing:
        outside.check(plan.faults, allows_admin=wanted.allows_admin, command=plan.fault_command)
        door = _door(wanted, plan)
        _reach(door)
    else:
        door = None
        check_faults(plan.faults, wanted.system, wanted.controllers)
        systems.check_controllers(wanted.system, wanted.controllers)
        systems.check_metastore(wanted.system, wanted.metastore)
        systems.check_storage(wanted.system, wanted.storage, plan.faults)
    wanted.directory.mkdir(parents=True, exist_ok=True)
    workload = workload_of(wanted, plan)
    skew_ms = max((FAULTS[fault].skew_ms for fault in plan.faults), default=0)
    more: dict[str, Any] = {}

    def describe() -> None:
        describe_run(wanted, plan, workload, skew_ms, more)

    def began(at_ms: int) -> None:
        more[BEGAN] = at_ms
        describe()

    describe()  # a run that is killed can be judged as well
    listener.phase("sets up")
    with ExitStack() as stack:
        system = _behind_proxy(_system(wanted, plan, door, stack), wanted.lie, plan, stack)
        try:
            start = partial(Shards, workload) if isinstance(workload, ShardedWorkload) else None
            ops = Runner(
                workload=workload,
                system=system,
                plan=plan,
                directory=wanted.directory,
                listener=listener,
                start_shards=start,
                began=began,
            ).run()
        finally:
            if system.cluster is not None and system.cluster.clocks is not None:
                skew_ms = system.cluster.clocks.skew_ms
            describe()  # it has made more logs
            if wanted.is_existing:
                probes.delete_topics(system.door, plan.topic_prefix)
    flat.write_parquet(_pieces(ops), wanted.directory, Order(str(wanted.directory)))
    if not wanted.keep_data:
        cluster = wanted.directory / CLUSTER
        for node in (*cluster.glob("node-*"), *cluster.glob("controller-*")):
            shutil.rmtree(node / "data", ignore_errors=True)
            (node / disks.IMAGE).unlink(missing_ok=True)
    listener.phase("judges")
    rules = Rules(wanted.model, frozenset(wanted.ignored), Options(patience_ms=wanted.patience_ms))
    judgement = judge(wanted.directory, ops, _judged(wanted, plan, workload, skew_ms), rules)
    judgement = completed(judgement, wanted.directory)
    write_results(wanted.directory, judgement)
    if wanted.has_page:
        page.write(wanted.directory, ops, description.read(wanted.directory), judgement.to_json())
    return judgement


def _pieces(ops: Sequence[Op]) -> Iterator[FlatHistory]:
    return (flat.from_ops(ops[first : first + PIECE_OPS]) for first in range(0, len(ops), PIECE_OPS))


def check_faults(faults: Sequence[str], system: str, controllers: int = 0) -> None:
    """Before anything is started."""
    for fault in faults:
        if not (fault == Metastore.name and controllers):  # which are what keeps Kafka's state
            FAULTS[fault].check(system)
        for other, why in FAULTS[fault].excludes.items():
            if other in faults:
                raise ExcludedFaultError(f"{fault} and {other} cannot be had together: {why}", "", "Run one by one")


def check_faults_hit(plan: Plan, workload: str, asked: Asked) -> None:
    """Raises PointlessFaultError: a run whose faults find nobody to hit is told before it takes its time."""
    kind = WORKLOADS[workload]
    is_transactional = asked.is_transactional or kind.always_in_transactions
    for name in plan.faults:
        why = pointless(name, compacts=kind.compacts, is_transactional=is_transactional, has_shards=bool(plan.shards))
        if why:
            raise PointlessFaultError(why, f"--workload {workload}", _with_what(name))


def _with_what(fault: str) -> str:
    """Workloads under which a fault hits somebody."""
    if FAULTS[fault].needs_compaction:
        return f"Name one of the workloads {', '.join(name for name, each in WORKLOADS.items() if each.compacts)}"
    return "Add --txn, or name another workload" if FAULTS[fault].needs_transactions else "Drop --shards, or the fault"


def _door(wanted: Wanted, plan: Plan) -> Door:
    """Raises SextonError if the clients of this run cannot get in as its file says."""
    security = security_from(wanted.command_config)
    for client in plan.clients:
        secured.check(client, security)
    if security != OPEN and (wanted.lie or any(FAULTS[fault].needs_proxy for fault in plan.faults)):
        what = "between clients and brokers that ask who comes, or encrypt, nothing can be late, slow or wrong"
        raise ExcludedFaultError(what, str(wanted.command_config), "Drop --lie and the faults late and slow-network")
    return Door(wanted.system, security)


def _reach(door: Door) -> None:
    """Before anything is written, here or there."""
    try:
        probes.broker_ids(door)
    except (LoginFailedError, TlsFailedError):  # it answers, and says what is wrong
        raise
    except SextonError as error:
        remedy = "Is it running, and do its brokers listen there? Name another address: --bootstrap HOST:PORT"
        raise NotReachedError(error.what, error.place or door.bootstrap, remedy) from None


class Rules(NamedTuple):
    """What a history is judged by."""

    model: Model = Model.KAFKA
    ignored: frozenset[str] = frozenset()
    options: Options = Options()


def judge(directory: Path, ops: Sequence[Op], judged: Run, rules: Rules) -> Judgement:
    """A run that has just ended: a long one as `check` would, from its directory."""
    if len(ops) <= PLAIN_OPS_MAX:
        return reference.judge(ops, judged, *rules)
    return _judge_at(directory, rules)


def check(path: Path, rules: Rules) -> Judgement:
    """Whatever a person names as a history."""
    return completed(_judge_at(path, rules), path)


def _judge_at(path: Path, rules: Rules) -> Judgement:
    loaded = load(path)
    if len(loaded.history.ops) <= PLAIN_OPS_MAX:
        judgement = reference.judge(flat.to_ops(loaded.history), loaded.run, *rules)
    else:
        from sexton.checker.kernels import judge as kernels  # compiled code, of which most runs have no need

        judgement = kernels.judge(loaded.history, loaded.run, *rules)
    return replace(judgement, notes=loaded.notes.to_json())


def completed(judgement: Judgement, path: Path) -> Judgement:
    """By what the run's directory says beside its history: what was counted there, and what somebody expected of it."""
    found = _description(path)
    more, workload = found.more, found.run.workload
    seen = {str(what): int(count) for what, count in more.get("seen", {}).items()}
    of = next((each.counts for name, each in WORKLOADS.items() if name == workload and each.counts), workload)
    counted = {f"{of}: {what}": count for what, count in seen.items()}
    expected = str(more.get("options", {}).get("expected", ""))
    return against_expected(replace(judgement, counted=counted), expected, seen)


def against_expected(judgement: Judgement, expected: str, seen: Mapping[str, int]) -> Judgement:
    """`seen` of the workload `abort`. Nobody promises where a consumer stands after an abort, so a run is false for it
    only if somebody has said what they rely on."""
    if not expected:
        return judgement
    others = {where: count for where, count in seen.items() if not where.startswith(f"{expected},")}
    told = f": {', '.join(f'{count} x {where}' for where, count in others.items())}" if others else ""
    duty = Obligation(f"after an abort consumers {expected}{told}", bool(seen) and not others)
    verdict = merge([judgement.verdict, Verdict.FALSE if others else Verdict.TRUE if seen else Verdict.UNKNOWN])
    return replace(judgement, verdict=verdict, obligations=[*judgement.obligations, duty])


def report(directory: Path) -> Path:
    """Writes the page of a run again, from what its directory has."""
    results = directory / RESULTS
    if not results.exists():
        raise NotAHistoryError("it has not been judged", str(directory), f"Judge it: sexton verify check {directory}")
    loaded = load(directory)
    found = Description(loaded.run, _description(directory).more)
    return page.write(directory, flat.to_ops(loaded.history), found, json.loads(results.read_bytes()))


def _description(directory: Path) -> Description:
    """A directory with Jepsen's history has none."""
    has_one = (directory / description.NAME).exists()
    return description.read(directory) if has_one else Description(Run())


def write_results(directory: Path, judgement: Judgement) -> None:
    (directory / RESULTS).write_text(json.dumps(judgement.to_json(), indent=1) + "\n")


def workload_of(wanted: Wanted, plan: Plan) -> Workload:
    asked = replace(wanted.asked, forgets_at_once=Grave.name in plan.faults)
    workload = WORKLOADS[wanted.workload].make(asked, random.Random(plan.seed + 2))
    return ShardedWorkload(wanted.workload, asked, workload) if plan.shards else workload


def _system(wanted: Wanted, plan: Plan, door: Door | None, stack: ExitStack) -> System:
    """`door` is that of a cluster that exists."""
    if door is not None:
        return systems.existing(door)
    settings = _broker_settings(plan)
    is_compacting = WORKLOADS[wanted.workload].compacts
    needs = {need for fault in plan.faults for need in FAULTS[fault].needs}
    directory = wanted.directory / CLUSTER
    return stack.enter_context(
        systems.running(
            wanted.system,
            directory,
            settings,
            is_compacting=is_compacting,
            needs=needs,
            nodes=wanted.nodes,
            metastore=wanted.metastore,
            storage=wanted.storage,
            controllers=wanted.controllers,
        )
    )


def _broker_settings(plan: Plan) -> dict[str, Any]:
    """That faults need."""
    return {name: value for fault in plan.faults for name, value in FAULTS[fault].broker_settings.items()}


def _behind_proxy(system: System, lie: str, plan: Plan, stack: ExitStack) -> System:
    """Whoever looks at the brokers from outside is told the lie, too."""
    if lie:
        proxy = stack.enter_context(Proxy(system.bootstrap, LIES[lie].make()))
        return replace(system, bootstrap=proxy.bootstrap, proxy=proxy)
    if not any(FAULTS[fault].needs_proxy for fault in plan.faults):
        return system
    return replace(system, proxy=stack.enter_context(Proxy(system.bootstrap)))


def _judged(wanted: Wanted, plan: Plan, workload: Workload, skew_ms: int) -> Run:
    return Run(
        name=wanted.directory.name,
        workload=wanted.workload,
        logs=workload.logs,
        is_read_committed=plan.isolation == "read_committed",
        uses_subscribe=workload.uses_subscribe,
        is_damage_judged=wanted.judges_corruption or kafka_version(wanted.system) is None,
        clock_skew_ms=skew_ms + INACCURACY_MS,
        has_acks_all=plan.acks == ACKS_ALL,
        is_idempotent=plan.is_idempotent,
    )


def digest(plan: Plan, asked: Asked) -> str:
    """Of all that follows from the seed: two runs that have the same were to do, and to suffer, the same."""
    choices = {**asdict(asked), **asdict(plan), "schedule": [asdict(act) for act in plan.schedule()]}
    return hashlib.sha256(canonical_json(choices).encode()).hexdigest()[:DIGEST_CHARS]


def describe_run(
    wanted: Wanted, plan: Plan, workload: Workload, skew_ms: int, found: Mapping[str, Any] | None = None
) -> None:
    """`found`: what is more, and was not before it began."""
    more: dict[str, Any] = {
        "seed": plan.seed,
        "plan": digest(plan, wanted.asked),
        "system": wanted.system,
        "existing": wanted.is_existing,
        "allows-admin": wanted.allows_admin,
        "command-config": "" if wanted.command_config is None else str(wanted.command_config),
        "nodes": wanted.nodes,
        "metastore": wanted.metastore,
        "storage": wanted.storage,
        "controllers": wanted.controllers,
        "model": str(wanted.model),
        "ignored": list(wanted.ignored),
        "patience-ms": wanted.patience_ms,
        "judges-corruption": wanted.judges_corruption,
        "lie": wanted.lie,
        "options": {**asdict(wanted.asked), **asdict(plan)},
        "versions": description.versions(each.package for each in known.CLIENTS.values() if each.package),
        "broker-settings": {} if wanted.is_existing else {**systems.SETTINGS, **_broker_settings(plan)},
        "client-settings": {
            name: {
                "producer": dict(plan.producer_settings(name)),
                "consumer": dict(plan.consumer_settings(name, {}, speaks_kip848=False)),
            }
            for name in plan.clients
        },
        "topic-settings": {each.topic: dict(workload.topic(log).settings) for log, each in workload.logs.items()},
        "seen": dict(workload.seen),
        "described": datetime.now(UTC).isoformat(timespec="seconds"),
        **(found or {}),
    }
    description.write(wanted.directory, Description(_judged(wanted, plan, workload, skew_ms), more))
