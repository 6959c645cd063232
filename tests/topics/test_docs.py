"""docs/faq.md asks every question of seed 3, its example is what is printed, and its commands run on a cluster."""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from sexton.cli.main import app
from sexton.harness.brokers import SextonCluster
from sexton.records.batch import Batch, Record, make_batch
from sexton.spark import session
from sexton.topics import finding
from tests.logs import HOUR_MS, NOW_MS
from tests.project import PROJECT_DIR
from tests.spark.local_context import LocalContext
from tests.topics.memory import Memory
from tests.topics.test_live import make_topic

PAGE = PROJECT_DIR / "docs" / "faq.md"
OTHER_PAGE = PROJECT_DIR / "docs" / "topics.md"
WIDTH = 132

SEED_QUESTIONS = (
    "Should I use topic compaction?",
    "Can I tune compaction so there are never two events with the same key?",
    "Can I trigger compaction to run?",
    'What is the "dirty ratio," and what does it mean for a partition to be dirty?',
    "What configs should I change to get better compaction?",
    "I published a new event with the same key as an older event, when will the older event be deleted?",
    "How do I delete all events sharing a key on a compacted topic?",
    "I still see tombstones on my partition, when will they be removed?",
    "How can I tell if compaction has failed on a partition?",
    "When cleaning runs, is it guaranteed to clean all duplicates?",
    "How can I count the number of records on a topic?",
    "What signals tell if compaction cannot fully clean a partition in a single pass?",
    "What is the maximum number of unique keys I should have per partition?",
    "How can I tell when compaction last ran on a partition?",
    "Can a topic be compacted and use time-based deletion?",
    "How can I use compaction but give consumers a guaranteed time window to see all messages before they are "
    "compacted?",
    "If I have a compacted topic, can I change the number of partitions?",
)
"""In its order."""


def answers() -> dict[str, str]:
    parts = re.split(r"^### (.+)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[0::2], parts[1::2], strict=True))


def commands(text: str) -> list[str]:
    return [line.split("  #")[0].strip() for line in text.splitlines() if re.match(r"    (sexton|echo) ", line)]


def test_every_question_of_the_seed_is_answered_with_a_command_in_its_order() -> None:
    assert tuple(answers()) == SEED_QUESTIONS
    for question, answer in answers().items():
        assert commands(answer), question


# ---- The example


def thinned(rng: random.Random, keys: range, clean: int, end: int) -> list[Batch]:
    """Compacted up to an offset, and not above it."""
    batches = []
    for base in range(0, end, 10):
        records = [
            Record(
                base + index,
                NOW_MS - HOUR_MS + base + index,
                b"customer-%d" % rng.choice(keys),
                None if rng.random() < 0.02 else b"%040d" % rng.randrange(10**9),
            )
            for index in range(10)
        ]
        if base < clean:
            records = [record for record in records if rng.random() < 0.2]
        if records:
            batches.append(make_batch(records, base_offset=base, last_offset=base + 9))
    return batches


def example() -> Memory:
    rng = random.Random(5)
    parts = {0: (range(400), 8_000, 9_500), 1: (range(400, 800), 6_000, 9_000), 2: (range(390, 520), 0, 1_200)}
    return Memory({number: thinned(rng, *part) for number, part in parts.items()})


class ClientOfMemory:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def __enter__(self) -> ClientOfMemory:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def topic(self, name: str, partitions: list[int] | None = None) -> finding.TopicLog:
        return self.memory.topic(partitions)

    def run(self, work: Callable[[Any], Any]) -> dict[tuple[str, int, int], bytes]:
        """Keys of examples."""
        return {
            ("orders", number, record.offset): record.key or b""
            for number, some in self.memory.batches.items()
            for batch in some
            for record in batch.records
        }


def without_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    context = LocalContext(random.Random(1))
    monkeypatch.setattr(session, "start", lambda *options: SimpleNamespace(sparkContext=context))


def test_the_example_is_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    command, printed = re.findall(r"```console\n\$ (.*?)\n```\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    memory = example()
    without_jvm(monkeypatch)
    monkeypatch.setattr(finding, "TopicClient", lambda connecting: ClientOfMemory(memory))
    monkeypatch.setattr(finding, "Reading", lambda *options: memory.as_reading)
    shown = CliRunner().invoke(app, shlex.split(command)[1:], env={"COLUMNS": str(WIDTH)}, catch_exceptions=False)
    assert shown.exit_code == 0
    assert lines_of(shown.output) == lines_of(printed)


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


# ---- The commands


@pytest.mark.parametrize("page", [PAGE, OTHER_PAGE])
def test_every_option_that_a_page_names_exists(page: Any) -> None:
    text = page.read_text()
    lines = [*commands(text), *re.findall(r"`(sexton [^`]+)`", text)]
    for line in lines:
        words = [word for word in shlex.split(line.split("| ")[-1]) if word.isascii()][1:]
        group = words[0] in ("topic", "log", "config", "compaction", "group")
        told = CliRunner().invoke(app, [*words[: 1 + group], "--help"], env={"COLUMNS": "200"})
        assert told.exit_code == 0, line
        for option in (word for word in words if word.startswith("--")):
            assert option in told.output, f"{option} in: {line}"


NEEDS_MORE = re.compile(r"sexton (compaction (run|why|history)|audit)|group describe")
"""A compactor, other replicas that are read (each has tests of its own), or a group that consumes."""


@pytest.mark.cluster
def test_the_commands_of_the_page_run_on_a_cluster(
    monkeypatch: pytest.MonkeyPatch, sexton_cluster: SextonCluster
) -> None:
    make_topic(sexton_cluster.bootstrap, "orders", 3, {"cleanup.policy": "compact"})
    without_jvm(monkeypatch)
    directory = next(iter(sexton_cluster.base_dir.glob("node-*/data/orders-0")))
    ran = 0
    for line in dict.fromkeys(commands(PAGE.read_text())):
        if NEEDS_MORE.search(line):
            continue
        stdin, _, command = line.rpartition(" | ")
        words = shlex.split(command.replace("/var/lib/kafka/data/orders-0", str(directory)))[1:]
        env = {"SEXTON_BOOTSTRAP": sexton_cluster.bootstrap, "COLUMNS": "200"}
        if stdin:
            text = f"{shlex.split(stdin)[1]}\n".encode()
            program = [sys.executable, "-m", "sexton.cli.main", *words]
            subprocess.run(program, input=text, env={**os.environ, **env}, check=True, timeout=120)
        else:
            done = CliRunner().invoke(app, words, env=env, catch_exceptions=False)
            assert done.exit_code == 0, f"{line}: {done.output}"
        ran += 1
    assert ran >= 10
