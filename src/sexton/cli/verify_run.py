"""What a person asked `sexton verify run` for: checked, and made into a plan."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sexton.cli.broker import UsageError
from sexton.cli.connect import parse_bootstrap
from sexton.cli.verify_names import (
    ACKS,
    DEFAULT_NODES,
    FAULTS,
    ISOLATIONS,
    LATE,
    METASTORES,
    POSITIONS,
    STORAGES,
    WAYS,
    WORKLOADS,
    clients_in,
    ignored_in,
    model_named,
    names_in,
)
from sexton.settings.properties import parse_settings

if TYPE_CHECKING:
    from sexton.verify.plan import Plan
    from sexton.verify.run import Wanted
    from sexton.verify.workloads.known import Asked

SECOND_NS: Final = 1_000_000_000
EXISTING_RATE: Final = 100.0
OWN_RATE: Final = 1_000.0

PERIOD_INTERVALS: Final = 3
"""Of what is broken and mended before another set of faults has its turn, unless --stable-period says otherwise."""

SECRET_PREFIXES: Final = ("sasl.", "ssl.", "security.")

CRASH_EVERY_NS: Final = 30 * SECOND_NS
"""Interval between two crashes of one client, with --crash-clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """As they stand on the command line: the names are those of the command's parameters, whose help says what each
    means."""

    system: str
    nodes: int
    metastore: str
    controllers: int
    storage: str
    bootstrap: str | None
    command_config: Path | None
    workload: str
    txn: bool
    sub_via: str
    nemesis: str
    no_faults: bool
    time_s: float
    client: str
    concurrency: int
    rate: float | None
    shards: int
    isolation: str
    crash_clients: bool
    late: str
    client_setting: list[str] | None
    acks: str
    idempotence: bool
    transaction_timeout_ms: int
    abort_after_timeout: bool
    no_rewind: bool
    shared_transactional_ids: bool
    expect: str
    max_writes_per_log: int
    abort_p: float
    calm_s: float
    interval_s: float
    stable_period_s: float | None
    final_time_s: float
    seed: int | None
    directory: Path | None
    yes: bool
    topic_prefix: str
    allow_admin: bool
    fault_command: str
    lie: str
    keep_data: bool
    judge_corruption: bool
    model: str
    ignore: str
    patience_s: float

    @property
    def is_existing(self) -> bool:
        """Whether it is a cluster that verify has not started."""
        return self.bootstrap is not None

    @property
    def late_requests(self) -> tuple[str, ...]:
        return names_in(self.late, LATE, "request")

    @property
    def faults(self) -> tuple[str, ...]:
        return names_in(f"{self.nemesis},late" if self.late_requests else self.nemesis, FAULTS, "fault")


def asked_for(options: RunOptions) -> tuple[Wanted, Plan]:
    """Raises SextonError where it makes no sense, before anything is started or written."""
    if options.no_faults and options.faults:
        raise UsageError("--no-faults and faults make no sense together", "", "Drop one of the two")
    _check_cluster(options)
    _check_names(options)
    asked = _workload(options)
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    directory = _directory(options, seed)
    return _wanted(options, asked, directory), _plan(options, asked, seed)


def _check_cluster(options: RunOptions) -> None:
    """What only one's own cluster has, and what is only for one that exists."""
    from sexton.verify import outside

    if options.is_existing:
        outside.check(options.faults, allows_admin=options.allow_admin, command=options.fault_command)
        if not options.topic_prefix:
            raise UsageError("topics with any name would be deleted at the end", "", "Name a prefix: --topic-prefix")
        own = options.nodes, options.metastore, options.storage, options.controllers
        if own != (DEFAULT_NODES, METASTORES[0], STORAGES[0], 0):
            what = "--nodes, --metastore, --storage and --controllers are of what verify starts"
            raise UsageError(what, "", "Drop them, or --bootstrap")
    elif options.allow_admin or options.fault_command or options.command_config:
        what = "--allow-admin, --fault-command and --command-config are for a cluster that exists"
        raise UsageError(what, "", "Name it: --bootstrap")


def _check_names(options: RunOptions) -> None:
    """Of faults and late requests, whoever asks for them does so."""
    from sexton.verify.lies import LIES

    names_in(options.metastore, METASTORES, "metastore")
    names_in(options.storage, STORAGES, "storage")
    names_in(options.lie, tuple(LIES), "lie")
    names_in(options.acks, ACKS, "number of acks")
    names_in(options.expect, POSITIONS, "position")
    names_in(options.workload, WORKLOADS, "workload")
    names_in(options.isolation, ISOLATIONS, "isolation level")


def _workload(options: RunOptions) -> Asked:
    from sexton.verify.workloads import known as workloads

    asked = workloads.Asked(
        options.txn or workloads.WORKLOADS[options.workload].always_in_transactions,
        names_in(options.sub_via, WAYS, "way"),
        expected=options.expect,
        sends_per_log_max=options.max_writes_per_log,
        abort_p=options.abort_p,
    )
    if asked.is_transactional and (options.acks != "all" or not options.idempotence):
        raise UsageError("transactions need acks=all and idempotence", "", "Drop --acks and --no-idempotence")
    if options.expect and options.workload != "abort":
        raise UsageError("--expect is for --workload abort", "", "Drop it, or name that workload")
    return asked


def _directory(options: RunOptions, seed: int) -> Path:
    started = datetime.now().strftime("%Y%m%d-%H%M%S")
    directory = options.directory or Path("sexton-verify") / f"{started}-{options.workload}-{seed}"
    if directory.exists():
        raise UsageError("it exists already", str(directory), "Name another directory")
    return directory


def _plan(options: RunOptions, asked: Asked, seed: int) -> Plan:
    from sexton.verify.plan import Plan
    from sexton.verify.workloads import known as workloads

    shards, concurrency = options.shards, options.concurrency
    return Plan(
        seed=seed,
        concurrency=max(concurrency // shards, 1) * shards if shards else concurrency,
        shards=shards,
        rate=options.rate or (EXISTING_RATE if options.is_existing else OWN_RATE),
        calm_ns=round(options.calm_s * SECOND_NS),
        main_ns=round(options.time_s * SECOND_NS),
        final_ns=round(options.final_time_s * SECOND_NS),
        period_ns=round((options.stable_period_s or PERIOD_INTERVALS * options.interval_s) * SECOND_NS),
        interval_ns=round(options.interval_s * SECOND_NS),
        faults=options.faults,
        clients=clients_in(options.client) or tuple(workloads.able_clients(options.workload, asked)),
        crash_every_ns=CRASH_EVERY_NS // concurrency if options.crash_clients else 0,
        isolation=options.isolation,
        topic_prefix=f"{options.topic_prefix}{seed}-",
        fault_command=options.fault_command,
        transaction_timeout_ms=options.transaction_timeout_ms,
        late=options.late_requests or LATE,
        acks=options.acks,
        is_idempotent=options.idempotence and options.acks == "all",
        client_settings=_client_settings(options.client_setting or ()),
        aborts_after_timeout=options.abort_after_timeout,
        rewinds=not options.no_rewind,
        shares_transactional_ids=options.shared_transactional_ids,
    )


def _client_settings(texts: Sequence[str]) -> dict[str, str]:
    """Which `test.json` repeats, and every page."""
    found = parse_settings(texts)
    for name in found:
        if name.removeprefix("producer.").removeprefix("consumer.").startswith(SECRET_PREFIXES):
            what = "what is set so is written down with the run, and it may be a secret"
            raise UsageError(what, f"--client-setting {name}", "Put it into a file: --command-config FILE")
    return found


def _addresses(bootstrap: str) -> str:
    """As every client takes them: with a port, without spaces."""
    addresses = parse_bootstrap(bootstrap, "--bootstrap")
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses)


def _wanted(options: RunOptions, asked: Asked, directory: Path) -> Wanted:
    from sexton.verify import systems
    from sexton.verify.run import Wanted

    return Wanted(
        system=systems.check_name(options.system) if options.bootstrap is None else _addresses(options.bootstrap),
        is_existing=options.is_existing,
        command_config=None if options.command_config is None else options.command_config.absolute(),
        workload=options.workload,
        asked=asked,
        directory=directory,
        keep_data=options.keep_data,
        judges_corruption=options.judge_corruption,
        nodes=options.nodes,
        metastore=options.metastore,
        controllers=options.controllers,
        storage=options.storage,
        allows_admin=options.allow_admin,
        model=model_named(options.model),
        ignored=ignored_in(options.ignore),
        patience_ms=round(options.patience_s * 1_000),
        lie=options.lie,
    )
