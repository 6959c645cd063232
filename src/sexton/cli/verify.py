"""`sexton verify`: runs Jepsen-like tests of a cluster, and judges their histories."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sexton import extras
from sexton.cli.broker import UsageError
from sexton.cli.connect import CommandConfig
from sexton.cli.verify_names import (
    ACKS,
    CLIENTS,
    DEFAULT_NODES,
    FAULTS,
    ISOLATIONS,
    LATE,
    METASTORES,
    MODELS,
    POSITIONS,
    STORAGES,
    SYSTEMS,
    WAYS,
    WORKLOADS,
    among,
    ignored_in,
    model_named,
)
from sexton.cli.verify_run import RunOptions, asked_for
from sexton.cli.verify_suite import selftest, suite
from sexton.cli.verify_telling import Told, console_of_run, tell

if TYPE_CHECKING:
    from sexton.checker.verdict import Judgement
    from sexton.verify.plan import Plan
    from sexton.verify.run import Rules
    from sexton.verify.shrinking import Tries

TIMEOUT_MS_MAX: Final = 40_000
"""Of transactions: whoever waits for the end of one must be done before it is taken for hanging."""

PATIENCE_S: Final = 60.0
EVIDENCE_CASES: Final = 32
"""Both as `checker.view.Options` has them: a test compares them."""

IGNORE_HELP: Final = "Allow these as well, with commas: `sexton verify list` has them."
PATIENCE_HELP: Final = "How long a consumer may stand still once all is healed, before it counts as stuck."

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Test any Kafka-compatible cluster as Jepsen does, and judge histories.",
)


@app.command()
def run(
    system: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="sexton, sexton-independent (compacts as Kafka does), or kafka-VERSION: started on this machine.",
            autocompletion=among(SYSTEMS),
        ),
    ] = "sexton",
    nodes: Annotated[int, typer.Option(metavar="N", help="Brokers.", min=3, max=9)] = DEFAULT_NODES,
    metastore: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Where Sexton keeps the cluster's state: sqlite, or postgres, started on this machine.",
            autocompletion=among(METASTORES),
        ),
    ] = "sqlite",
    controllers: Annotated[
        int, typer.Option(metavar="N", help="Of Kafka, beside its brokers; 0: in them.", min=0, max=9)
    ] = 0,
    storage: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Where Sexton keeps topics: local, or cloud, in an S3 that is started on this machine.",
            autocompletion=among(STORAGES),
        ),
    ] = "local",
    bootstrap: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,…", help="A cluster that exists, instead; nothing is broken there.")
    ] = None,
    command_config: CommandConfig = None,
    workload: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"{', '.join(WORKLOADS)}.",
            autocompletion=among(WORKLOADS),
        ),
    ] = "queue",
    txn: Annotated[bool, typer.Option("--txn", help="Send and poll in transactions.")] = False,
    sub_via: Annotated[
        str,
        typer.Option(
            metavar="WAYS",
            help="How clients of queue get logs to read, with commas: assign, subscribe.",
            autocompletion=among(WAYS, has_list=True),
        ),
    ] = "assign",
    nemesis: Annotated[
        str,
        typer.Option(
            metavar="FAULTS",
            help="Which faults, with commas: `sexton verify list` has them.",
            autocompletion=among(FAULTS, has_list=True),
        ),
    ] = "",
    no_faults: Annotated[bool, typer.Option("--no-faults", help="Break nothing: so it is without --nemesis.")] = False,
    time_s: Annotated[float, typer.Option("--time", metavar="SECONDS", help="How long faults come.", min=1)] = 60.0,
    client: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help=f"Which clients, with commas: {', '.join(CLIENTS)}, or java-VERSION, as in java-3.9.2. By default all "
            "that are installed and can do what they will be asked for.",
            autocompletion=among(CLIENTS, has_list=True),
        ),
    ] = "",
    concurrency: Annotated[int, typer.Option(help="Clients at a time.", min=1)] = 6,
    rate: Annotated[
        float | None, typer.Option(help="Operations a second, at most: 1000, or 100 with --bootstrap.", min=0.1)
    ] = None,
    shards: Annotated[
        int,
        typer.Option(
            metavar="COUNT",
            help="So many processes decide for themselves what they do, instead of one for all: for long runs. Each "
            "has its share of the clients; of a share of several, all but one only send.",
            min=0,
        ),
    ] = 0,
    isolation: Annotated[
        str,
        typer.Option(
            metavar="LEVEL",
            help="What consumers read: read_committed or read_uncommitted.",
            autocompletion=among(ISOLATIONS),
        ),
    ] = "read_committed",
    crash_clients: Annotated[
        bool, typer.Option("--crash-clients", help="Kill clients, each about every 30 s.")
    ] = False,
    late: Annotated[
        str,
        typer.Option(
            metavar="REQUESTS",
            help=f"Have these come late, with commas: {', '.join(LATE)}. Adds the fault `late`.",
            autocompletion=among(LATE, has_list=True),
        ),
    ] = "",
    client_setting: Annotated[
        list[str] | None,
        typer.Option(
            "--client-setting",
            metavar="NAME=VALUE",
            help="A setting of clients, by Java's name for it; producer.NAME and consumer.NAME are for these alone. "
            "May be repeated.",
        ),
    ] = None,
    acks: Annotated[
        str,
        typer.Option(
            metavar="NUMBER",
            help="What producers without transactions wait for: all, 1 or 0. Less than all is not idempotent.",
            autocompletion=among(ACKS),
        ),
    ] = "all",
    idempotence: Annotated[
        bool, typer.Option("--idempotence/--no-idempotence", help="Of producers without transactions.")
    ] = True,
    transaction_timeout_ms: Annotated[
        int,
        typer.Option(
            "--transaction-timeout",
            metavar="MS",
            help="transaction.timeout.ms of producers.",
            min=1,
            max=TIMEOUT_MS_MAX,
        ),
    ] = 1_000,
    abort_after_timeout: Annotated[
        bool,
        typer.Option("--abort-after-timeout", help="Abort after a commit that was not answered in time (KAFKA-17754)."),
    ] = False,
    no_rewind: Annotated[
        bool,
        typer.Option("--no-rewind", help="Leave consumers where they are after a failed operation (KAFKA-17582)."),
    ] = False,
    shared_transactional_ids: Annotated[
        bool,
        typer.Option("--shared-transactional-ids", help="Give every two clients one transactional id between them."),
    ] = False,
    expect: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="With --workload abort: where consumers must stand after an abort, advance or rewind.",
            autocompletion=among(POSITIONS),
        ),
    ] = "",
    max_writes_per_log: Annotated[
        int, typer.Option(metavar="COUNT", help="Of queue: then a log is left for a new one.", min=1)
    ] = 1024,
    abort_p: Annotated[
        float, typer.Option("--abort-p", help="Of a transaction, at each step: abort it on purpose.", min=0, max=1)
    ] = 0.1,
    calm_s: Annotated[
        float, typer.Option("--calm", metavar="SECONDS", help="Before the first fault, beside --time.", min=0)
    ] = 5.0,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Between faults, about.", min=0.1)
    ] = 10.0,
    stable_period_s: Annotated[
        float | None,
        typer.Option(
            "--stable-period",
            metavar="SECONDS",
            help="How long the same faults may come, before others have their turn: three intervals.",
            min=0.1,
        ),
    ] = None,
    final_time_s: Annotated[
        float, typer.Option("--final-time", metavar="SECONDS", help="For the final reads, at most.", min=1)
    ] = 200.0,
    seed: Annotated[int | None, typer.Option(help="What all choices follow from.", min=0)] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Where the run is written. Must not exist.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --bootstrap, do not ask before the first write.")] = False,
    topic_prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="What the names of all our topics, groups and ids begin with.")
    ] = "sexton-verify-",
    allow_admin: Annotated[
        bool, typer.Option("--allow-admin", help="With --bootstrap: leadership and membership may move our topics.")
    ] = False,
    fault_command: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="With --bootstrap: what breaks and mends brokers, as in 'prog {start|stop} {kind} {broker}'. The "
            "kinds are kill, stop, pause and partition.",
        ),
    ] = "",
    lie: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Lie to clients, as selftest does: the verdict should be false. `sexton verify list` has lies.",
        ),
    ] = "",
    keep_data: Annotated[bool, typer.Option("--keep-data", help="Keep the brokers' data, too.")] = False,
    judge_corruption: Annotated[
        bool,
        typer.Option("--judge-corruption", help="Judge what Kafka, too, makes of corrupt-file; Sexton always is."),
    ] = False,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What is allowed: kafka, jepsen or strict.",
            autocompletion=among(MODELS),
        ),
    ] = "kafka",
    ignore: Annotated[str, typer.Option(metavar="ANOMALIES", help=IGNORE_HELP)] = "",
    patience_s: Annotated[float, typer.Option("--patience", metavar="SECONDS", help=PATIENCE_HELP, min=1)] = PATIENCE_S,
) -> None:
    """Start a cluster, use it while faults come and go, and judge what its clients saw.

    It ends with 0 if the verdict is true, with 1 if it is false, and with 3 if not all was tested that should have
    been. Ctrl-C heals what is broken, and judges what there is.
    """
    options = RunOptions(**locals())  # each parameter by its name
    if not options.client:
        extras.need("verify", "sexton verify run", ", or name what you have with --client")
    from sexton.verify import run as verifying
    from sexton.verify.report import page

    wanted, plan = asked_for(options)
    if wanted.is_existing and not yes:
        _confirm(wanted.system, plan)
    console = console_of_run()
    clients = ", ".join(plan.clients)
    console.print(f"{wanted.system}, {wanted.workload}, {clients}, seed {plan.seed}, in {wanted.directory}")
    with console.status("") as status:
        judgement = verifying.run(wanted, plan, Told(console, status))
    console.print(f"The page: {wanted.directory / page.NAME}")
    tell(judgement, console, wanted.directory)


def _confirm(bootstrap: str, plan: Plan) -> None:
    """Exits with a code that is not one of a verdict: nothing was tested."""
    asked = f"Make topics {plan.topic_prefix}* in {bootstrap}, use them, and delete them?"
    try:
        is_wanted = typer.confirm(asked)
    except typer.Abort:  # nobody is there to answer
        is_wanted = False
    if not is_wanted:
        raise UsageError("nothing was written, nothing was tested", bootstrap, "Answer y, or say so before: --yes")


@app.command()
def check(
    path: Annotated[Path, typer.Argument(metavar="HISTORY", help="A run's directory, or a history in any format.")],
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What is allowed: kafka, jepsen or strict.",
            autocompletion=among(MODELS),
        ),
    ] = "kafka",
    ignore: Annotated[str, typer.Option(metavar="ANOMALIES", help=IGNORE_HELP)] = "",
    patience_s: Annotated[float, typer.Option("--patience", metavar="SECONDS", help=PATIENCE_HELP, min=1)] = PATIENCE_S,
    evidence: Annotated[
        int,
        typer.Option(metavar="COUNT", help="Cases of each anomaly that are kept, the worst. All are counted.", min=1),
    ] = EVIDENCE_CASES,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Judge on Spark: local[*], spark://host:7077, yarn, ...")
    ] = None,
) -> None:
    """Judge a history: of a run, or Jepsen's history.edn.

    It ends with 0 if the verdict is true, with 1 if it is false, and with 3 if not all was tested that should have
    been.
    """
    from sexton.checker.view import Options
    from sexton.verify import run as verifying
    from sexton.verify.report import page

    options = Options(patience_ms=round(patience_s * 1_000), evidence_max=evidence)
    rules = verifying.Rules(model_named(model), frozenset(ignored_in(ignore)), options)
    judgement = verifying.check(path, rules) if master is None else _check_on_spark(path, rules, master)
    if path.is_dir():
        verifying.write_results(path, judgement)
        if (path / page.NAME).exists():  # it may tell another verdict
            verifying.report(path)
    tell(judgement, console_of_run())


def _check_on_spark(path: Path, rules: Rules, master: str) -> Judgement:
    extras.need("compactor", "sexton verify check --master")
    from sexton.history.load import history_at
    from sexton.spark import check as checking
    from sexton.spark import session
    from sexton.verify.run import completed

    found = history_at(path)  # before a session is started for nothing
    spark = session.start("sexton verify check", master)
    try:
        return completed(checking.check(spark.sparkContext, found.resolve(), *rules), path)
    finally:
        spark.stop()


@app.command()
def export(
    path: Annotated[Path, typer.Argument(metavar="HISTORY", help="A run's directory, or a history in any format.")],
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The history.edn to write. Must not exist.")],
) -> None:
    """Write a history as EDN, for Jepsen's own checkers."""
    from sexton.history import edn, flat
    from sexton.history.load import load

    loaded = load(path)
    count = edn.write(target, flat.to_ops(loaded.history), loaded.run)
    console_of_run().print(f"Wrote {count:,} operations to {target}")


@app.command()
def report(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a run that was judged.")],
) -> None:
    """Write the page of a run again, from its history and its results."""
    from sexton.verify import run as verifying

    console_of_run().print(f"Wrote {verifying.report(path)}")


@app.command()
def replay(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a run.")],
    times: Annotated[int, typer.Option(help="At most so often, until something wrong is found.", min=1)] = 1,
    shrink: Annotated[
        bool,
        typer.Option(
            "--shrink", help="Then with less time, fewer faults and fewer processes, while it is still found."
        ),
    ] = False,
    tries: Annotated[str, typer.Option(metavar="N/M", help="With --shrink: found in N of M tries is found.")] = "1/2",
    yes: Annotated[bool, typer.Option("--yes", help="Of a cluster that exists, do not ask before a write.")] = False,
) -> None:
    """Run it again: the same seed, so the same choices and the same schedule of faults.

    What a race decided may come out otherwise. Each replay has a directory of its own, beside the first. Ctrl-C ends
    the one that is under way as it ends a run, and begins no other.
    """
    from sexton.checker.verdict import Verdict
    from sexton.verify import again, shrinking

    console = console_of_run()
    needed = shrinking.Tries.parse(tries)
    wanted, plan = again.read(path, path)
    if wanted.is_existing and not yes:
        _confirm(wanted.system, plan)
    is_stopped = False
    for number in range(1, times + 1):
        console.print(f"{number} of {times}: {', '.join(shrinking.described(plan)[:1])}")
        judgement, is_stopped = _again(path, plan, console)
        if judgement.verdict is Verdict.FALSE or is_stopped:
            break
    if shrink and judgement.verdict is Verdict.FALSE and not is_stopped:
        _shrink(path, plan, judgement.wrong(), needed, console)
    tell(judgement, console)


def _shrink(path: Path, plan: Plan, wrong: Collection[str], needed: Tries, console: Console) -> None:
    """Ctrl-C ends it with the smallest plan so far."""
    from sexton.verify import again, shrinking

    def attempt(smaller: Plan) -> list[str]:
        console.print(f"[bold]tries[/] {'; '.join(shrinking.described(smaller))}")
        judgement, is_stopped = _again(path, smaller, console)
        if is_stopped:
            raise KeyboardInterrupt
        console.print(f"found: {', '.join(judgement.wrong()) or 'nothing'}")
        return judgement.wrong()

    try:
        for smaller in shrinking.shrink(plan, wrong, attempt, needed):
            console.print(f"[bold]smaller[/]: {'; '.join(shrinking.described(smaller))}")
            plan = smaller
    except KeyboardInterrupt:
        console.print("Stopped: there may be smaller ones.")
    smallest = again.write(path, plan)
    console.print("[bold]The smallest plan that shows it:[/]")
    for line in shrinking.described(plan):
        console.print(f"  {line}")
    console.print(f"Run it: sexton verify replay {smallest}")


def _again(path: Path, plan: Plan, console: Console) -> tuple[Judgement, bool]:
    """What was run there, with this plan; and whether somebody has stopped it."""
    from sexton.verify import again
    from sexton.verify import run as verifying
    from sexton.verify.runner import INTERRUPTED

    wanted, _ = again.read(path, again.places(path))
    console.print(f"{wanted.system}, {wanted.workload}, seed {plan.seed}, in {wanted.directory}")
    with console.status("") as status:
        told = Told(console, status)
        return verifying.run(wanted, plan, told), INTERRUPTED in told.phases


app.command()(suite)
app.command()(selftest)


@app.command("list")
def list_() -> None:
    """Show workloads, faults, clients, anomalies and lies, each with one line."""
    from sexton.checker.anomalies import ANOMALIES
    from sexton.verify.clients import known
    from sexton.verify.faults.known import FAULTS as ALL_FAULTS
    from sexton.verify.lies import LIES
    from sexton.verify.workloads.known import WORKLOADS as ALL_WORKLOADS

    console = console_of_run()
    faults = {name: (fault.__doc__ or "").splitlines()[0] for name, fault in ALL_FAULTS.items()}
    clients = {name: known.version_of(name) or "not installed" for name in known.CLIENTS}
    anomalies = {name: each.meaning for name, each in ANOMALIES.items()}
    for title, rows in (
        ("Workloads", {name: each.meaning for name, each in ALL_WORKLOADS.items()}),
        ("Faults", faults),
        ("Clients", clients),
        ("Anomalies", anomalies),
        ("Lies (of selftest)", {name: lie.meaning for name, lie in LIES.items()}),
    ):
        table = Table(title=title, title_justify="left", show_header=False, box=None, title_style="bold")
        for name, line in rows.items():
            table.add_row(name, escape(line))
        console.print(table)
