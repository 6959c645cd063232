"""How many operations a second `sexton verify` asks of a healthy cluster, and whose processor time they take.

    python -m benchmarks.verify_load [--seconds 10] [--modes led sharded] [--workload queue] [--txn]

Three Sexton brokers on this machine, no faults, librdkafka. *Led* is one process that decides every operation and asks
clients through pipes; *sharded* is two processes that decide for themselves. Seconds of processor time are for 1,000
operations, of whoever leads, of clients (with shards) and of brokers: unlike operations a second, they hardly depend on
what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from sexton.history.op import Type
from sexton.verify import run as verifying
from sexton.verify.generator import NS
from sexton.verify.plan import Plan
from sexton.verify.workloads.known import WORKLOADS, Asked

CALM_S: Final = 3
"""Before it is measured: clients start, and make topics."""

RATE: Final = 1e6
LED: Final = "led"
MODES: Final[Mapping[str, Mapping[str, Any]]] = {
    LED: {"concurrency": 8},
    "sharded": {"concurrency": 256, "shards": 2},
}
PARTIES: Final = {"sexton.verify.": "clients", "sexton.cli.main": "brokers"}


def seconds_by_party() -> dict[str, float]:
    """Of this process and all that it has started."""
    own = psutil.Process()
    found = {"leader": sum(own.cpu_times()[:2])}
    for child in own.children(recursive=True):
        try:
            command = " ".join(child.cmdline())
            party = next((name for part, name in PARTIES.items() if part in command), "others")
            found[party] = found.get(party, 0.0) + sum(child.cpu_times()[:2])
        except psutil.Error:
            continue
    return found


class Look(NamedTuple):
    at_s: float
    done: int
    seconds: dict[str, float]


@dataclass
class Watch:
    """Looks at the clocks once a second in the main part of a run."""

    is_main: bool = False
    looks: list[Look] = field(default_factory=list)

    def phase(self, name: str) -> None:
        self.is_main = name == "main"

    def progress(self, now_ns: int, counts: Mapping[Type, int]) -> None:
        if self.is_main:
            done = sum(count for type_, count in counts.items() if type_ is not Type.INVOKE)
            self.looks.append(Look(time.monotonic(), done, seconds_by_party()))

    def fault(self, what: str) -> None: ...


def measured(mode: str, options: argparse.Namespace, directory: Path) -> tuple[str, ...]:
    watch = Watch()
    plan = Plan(
        seed=1,
        rate=RATE,
        calm_ns=CALM_S * NS,
        main_ns=options.seconds * NS,
        clients=("confluent-kafka",),
        transaction_timeout_ms=20_000,
        topic_prefix="sexton-verify-",
        client_settings=dict(each.split("=", 1) for each in options.client_setting),
        **{**MODES[mode], **({"concurrency": options.concurrency} if options.concurrency else {})},
    )
    wanted = verifying.Wanted(
        system="sexton", workload=options.workload, asked=Asked(options.txn), directory=directory, has_page=False
    )
    judgement = verifying.run(wanted, plan, watch)
    first, last = watch.looks[0], watch.looks[-1]
    done = last.done - first.done
    each = {
        party: 1_000 * (seconds - first.seconds.get(party, 0.0)) / done
        for party, seconds in sorted(last.seconds.items())
    }
    told = ", ".join(f"{party} {seconds:.2f}" for party, seconds in each.items())
    return mode, f"{done / (last.at_s - first.at_s):,.0f}", f"{sum(each.values()):.2f}", told, str(judgement.verdict)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--workload", choices=WORKLOADS, default="queue")
    parser.add_argument("--txn", action="store_true")
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--client-setting", action="append", default=[])
    options = parser.parse_args()
    table = Table("mode", "operations/s", "CPU s/1,000", "of whom", "verdict")
    for mode in options.modes:
        with tempfile.TemporaryDirectory() as temporary:
            table.add_row(*measured(mode, options, Path(temporary) / "run"))
    Console().print(table)
    Console().print(f"load while it ended: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
