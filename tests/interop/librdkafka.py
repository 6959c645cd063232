"""librdkafka's own tests: fetched, built, and run against brokers, each in a process of its own.

Its runner can do all in one process, but ends it when a test takes too long; and what ten tests print at once nobody
can read.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sexton.harness.errors import HarnessError
from sexton.harness.jars import DEFAULT_VERSION, jar_dir, java
from tests.interop.archives import unpack
from tests.interop.clients import ENVIRONMENTS_DIR, environment
from tests.interop.more.programs import NODE
from tests.interop.suites import LIBRDKAFKA, LIBRDKAFKA_LEFT_OUT

PACKAGE: Final = "@confluentinc/kafka-javascript@1.10.1"
"""Whose sources hold librdkafka's, tests and all."""

ARCHIVE: Final = "confluentinc-kafka-javascript-1.10.1.tgz"
ARCHIVE_SHA256: Final = "ada7d703bb1d3237e2292bfabf438d663b6160c9f1ac2a2406b5dc4257c81b66"
INSIDE: Final = "package/deps/librdkafka"

CONFIGURED: Final = ("--enable-zlib", "--enable-zstd", "--enable-ssl", "--disable-gssapi", "--disable-curl")
BUILD_TIMEOUT_S: Final = 1_200
"""Two minutes on two idle cores."""

COMPILERS: Final = "g++ make zlib1g-dev libzstd-dev libssl-dev rapidjson-dev default-jdk-headless"

AT_ONCE: Final = 10
"""Tests mostly wait."""

TIMEOUT_MULTIPLIER: Final = 3
"""Of its tests' own timeouts; its own scripts have 2 and more, the more tests run at a time."""

PROCESS_TIMEOUT_S: Final = 600
"""Of one test; most have timeouts of their own, which are shorter."""

TAIL_LINES: Final = 40
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
SUBTEST_SKIPPED: Final = re.compile(r"\[ (\w+):\d+.*: SKIP: ")
TABLE: Final = re.compile(r"struct test tests\[\] = \{(.*?)\{NULL\}", re.DOTALL)
ENTRY: Final = re.compile(r"\b_TEST\((\w+),(.*?)(?=\b_TEST\(|\Z)", re.DOTALL)
NOT_WITH_OTHERS: Final = ("TEST_F_LOCAL", "TEST_F_MANUAL", "TEST_F_KNOWN_ISSUE,", "TEST_F_KNOWN_ISSUE)")
"""Flags of tests that use no broker, or that its authors do not run with the others."""

DEFAULT_SCENARIO: Final = "default"
SCENARIOS: Final = (DEFAULT_SCENARIO, "noautocreate")
"""What its tests call a way to set up brokers."""

PROTOCOLS: Final = ("classic", "consumer")
JOINS_GROUPS: Final = re.compile(r"subscribe\(|consumer_group_protocol")

IN_PARTS: Final = {"0081": "do_test_apis", "0113": "main_0113_cooperative_rebalance"}
"""Tests whose sub-tests are run one by one, since some are left out, or all of them would take ten minutes; and the
function that calls these."""

INSTEAD: Final = {
    "u_multiple_subscription_changes:": tuple(f"subscription_variation: {number}" for number in range(3)),
}
"""Sub-tests that are split further."""

VERSIONS: Final = {"0109": "2.0.0"}
"""What to tell tests of the brokers' version, where not the truth. 0109 tries access control too if the brokers are
newer than this."""

ALONE: Final = ("0033", "0077", "0127")
"""The first deletes topics with a consumer that asks for them every 5 s and has them made again: those that it asks for
before it ends are in the next round's way. The second gives the cleaner 20 s, the third measures how soon records
come."""

SLOW: Final = ("0098", "0113", "0081", "0089", "0103", "0045", "0091", "0026", "0094", "0076", "0030")
"""Started first, so that they do not end last."""

PASSED, NO_STATE = "PASSED", "it ended without a result"

RUN_CLASS: Final = """\
#!/bin/sh
exec {java} -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "{jars}/*:$CLASSPATH" "$@"
"""
TOOL: Final = """\
#!/bin/sh
exec "$(dirname "$0")/kafka-run-class.sh" {main_class} "$@"
"""
TOOLS: Final = {"kafka-topics.sh": "org.apache.kafka.tools.TopicCommand"}
"""Kafka's scripts that tests call."""


@dataclass(frozen=True)
class Case:
    """What one process runs: the tests of one number, or a part of one, with one group protocol."""

    tests: tuple[str, ...]
    protocol: str
    part: str = ""
    """Begins the names of the sub-tests to run; empty: all."""

    @property
    def number(self) -> str:
        return self.tests[0].partition("_")[0]


@dataclass(frozen=True)
class Outcome:
    """Of one test."""

    name: str
    failure: str
    """Empty: it passed."""
    duration_s: float


def built() -> Path:
    """The folder of its tests, with everything in it made, from sources of the registry."""
    wanted = "\n".join([LIBRDKAFKA, ARCHIVE_SHA256, *CONFIGURED])
    target = ENVIRONMENTS_DIR / f"librdkafka-{LIBRDKAFKA}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"
    if not target.exists():
        partial = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        unpack(_archive(), partial, f"{INSIDE}/")
        sources = partial / INSIDE
        jobs = f"-j{os.cpu_count() or 1}"
        _make(["./configure", *CONFIGURED], sources)
        _make(["make", jobs, "libs"], sources)
        _make(["make", jobs, "-C", "tests", "build"], sources)
        _make(["make", "-C", "tests", "java", f"KAFKA_JARS={jar_dir()}"], sources)
        partial.rename(target)
    return target / INSIDE / "tests"


def _archive() -> Path:
    archive = ENVIRONMENTS_DIR / "sources" / ARCHIVE
    if not archive.exists():
        bin_dir = environment((NODE,)) / "bin"
        archive.parent.mkdir(parents=True, exist_ok=True)
        path = {"PATH": f"{bin_dir}:{os.environ['PATH']}"}
        _make([str(bin_dir / "npm"), "pack", "--silent", PACKAGE], archive.parent, path)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != ARCHIVE_SHA256:
        raise HarnessError(f"{archive} is not what was expected: SHA-256 {found}, not {ARCHIVE_SHA256}. Remove it")
    return archive


def _make(command: list[str], directory: Path, variables: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            ["nice", *command],
            cwd=directory,
            env={**os.environ, **(variables or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise HarnessError(f"{' '.join(command)} did not end in {BUILD_TIMEOUT_S} s") from late
    if done.returncode != 0:
        raise HarnessError(
            f"librdkafka {LIBRDKAFKA} could not be built: {' '.join(command)} failed. It needs Debian's {COMPILERS} "
            f"(scripts/setup clients installs them).\n{done.stdout[-8000:]}"
        )


def cases(tests: Path, scenario: str) -> list[Case]:
    """What needs a broker in this scenario and is not left out; twice if it may join a group."""
    by_number: dict[str, list[str]] = {}
    for name in tests_with_broker(tests, scenario):
        by_number.setdefault(name[:4], []).append(name)
    found = []
    for number, names in by_number.items():
        (source,) = tests.glob(f"{number}-*.c*")
        text = source.read_text(errors="replace")
        for protocol in PROTOCOLS if JOINS_GROUPS.search(text) else PROTOCOLS[:1]:
            for part in parts(text, number):
                chosen = [name for name in names if not is_left_out(label(name, protocol, part))]
                if chosen:
                    found.append(Case(tuple(chosen), protocol, part))
    return found


def tests_with_broker(tests: Path, scenario: str) -> list[str]:
    """By the table in its own runner: those that its authors run with the others, and not without a broker."""
    table = TABLE.search((tests / "test.c").read_text())
    assert table is not None
    found = []
    for name, rest in ENTRY.findall(table[1]):
        asked = re.search(r'\.scenario = "([^"]*)"', rest)
        if scenario in (asked[1] if asked else DEFAULT_SCENARIO) and not any(flag in rest for flag in NOT_WITH_OTHERS):
            found.append(name)
    return found


def parts(source: str, number: str) -> list[str]:
    """How the names of its sub-tests begin, or what is in them; once an empty one if it is run as a whole."""
    if number not in IN_PARTS:
        return [""]
    body = source[source.index(f"{IN_PARTS[number]}(") :]
    called = re.findall(r"^\s+(do_test_\w+|[a-z]_\w+)\(", body[: body.index("\n}")], re.MULTILINE)
    names = dict.fromkeys(f"{name}:" for name in called)
    return [part for name in names for part in INSTEAD.get(name, (name,))]


def label(test: str, protocol: str, part: str = "") -> str:
    return f"{test}{'/' if part else ''}{part.rstrip(':')} ({protocol})"


def is_left_out(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, f"{pattern}*") for pattern in LIBRDKAFKA_LEFT_OUT)


class Runner:
    """Runs tests against brokers, several at a time; what each printed stays in the directory."""

    def __init__(self, tests: Path, bootstrap: str, scenario: str, directory: Path) -> None:
        self._tests = tests
        self._scenario = scenario
        self._directory = directory
        self._bootstrap = bootstrap
        self._variables = {
            **os.environ,
            "BROKERS": bootstrap,
            "KAFKA_PATH": str(self._kafka_tools()),
            "LD_LIBRARY_PATH": "../src:../src-cpp",
        }

    def run(self, wanted: Iterable[Case]) -> list[Outcome]:
        """Both protocols of a test one after the other, each of which deletes its topics (-D): patterns of one match
        names of the other."""
        jobs: dict[tuple[str, str], list[Case]] = {}
        for case in wanted:
            jobs.setdefault((case.number, case.part), []).append(case)
        order = sorted(jobs, key=lambda job: SLOW.index(job[0]) if job[0] in SLOW else len(SLOW))
        pool = ThreadPoolExecutor(AT_ONCE)
        try:
            together = list(pool.map(self._run_all, [jobs[job] for job in order if job[0] not in ALONE]))
        finally:
            pool.shutdown(cancel_futures=True)
        alone = [self._run_all(jobs[job]) for job in order if job[0] in ALONE]
        return [outcome for found in [*together, *alone] for outcome in found]

    def _run_all(self, cases: Iterable[Case]) -> list[Outcome]:
        return [outcome for case in cases for outcome in self._run(case)]

    def _kafka_tools(self) -> Path:
        """A folder as Kafka's own archive has it, as far as tests use it."""
        path = self._directory / "kafka"
        (path / "bin").mkdir(parents=True)
        (path / "libs").symlink_to(jar_dir())
        scripts = {"kafka-run-class.sh": RUN_CLASS.format(java=java(), jars=path / "libs")}
        scripts |= {name: TOOL.format(main_class=main_class) for name, main_class in TOOLS.items()}
        for name, text in scripts.items():
            (path / "bin" / name).write_text(text)
            (path / "bin" / name).chmod(0o755)
        return path

    def _run(self, case: Case) -> list[Outcome]:
        name = re.sub(r"\W+", "-", f"{case.number}-{case.protocol}-{case.part}").rstrip("-")
        config_path, report_path, log_path = (self._directory / f"{name}.{end}" for end in ("conf", "json", "log"))
        config_path.write_text(
            f"bootstrap.servers={self._bootstrap}\n"
            f"test.topic.prefix={name}.\n"
            "test.topic.random=true\n"
            f"test.timeout.multiplier={TIMEOUT_MULTIPLIER}\n"
        )
        variables = {
            **self._variables,
            "RDKAFKA_TEST_CONF": str(config_path),
            "TESTS": case.number,
            "TEST_CONSUMER_GROUP_PROTOCOL": case.protocol,
            "TEST_KAFKA_VERSION": VERSIONS.get(case.number, DEFAULT_VERSION),
            "TEST_REPORT": str(report_path),
            **({"SUBTESTS": case.part} if case.part else {}),
        }
        started_s = time.monotonic()
        with log_path.open("wb") as log:
            try:
                subprocess.run(
                    ["./test-runner", "-L", "-D", "-p4", "-s", self._scenario],
                    cwd=self._tests,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=PROCESS_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                log.write(f"\nended from outside after {PROCESS_TIMEOUT_S} s\n".encode())
        printed = COLOURS.sub("", log_path.read_text(errors="replace"))
        states = _states(report_path)
        return [
            Outcome(
                label(test, case.protocol, case.part),
                _failure(states.get(test, NO_STATE), case, printed),
                time.monotonic() - started_s,
            )
            for test in case.tests
        ]


def _states(report_path: Path) -> dict[str, str]:
    """By test, as the runner itself says; nothing if it crashed."""
    try:
        return {name: test["state"] for name, test in json.loads(report_path.read_text())["tests"].items()}
    except (FileNotFoundError, ValueError):
        return {}


def _failure(state: str, case: Case, printed: str) -> str:
    """Why it does not count as passed, for people; empty if it does."""
    skipped = [
        name for name in SUBTEST_SKIPPED.findall(printed) if not is_left_out(label(case.tests[0], case.protocol, name))
    ]
    if state == PASSED and skipped:
        return f"it skipped {', '.join(skipped)}"
    if state == PASSED and case.part and ": PASS (" not in printed:
        return f"it has no sub-test {case.part}"
    if state == PASSED:
        return ""
    said = re.findall(r"^### Test .*\n.*|SKIPPING TEST: .*", printed, re.MULTILINE)
    lines = [line for line in printed.splitlines() if "test(s) running" not in line]
    return "\n".join([state, *said, "--- the end of what it printed", *lines[-TAIL_LINES:]])


def unknown_names(tests: Path) -> list[str]:
    """What is left out by a name that no test has any more."""
    known = []
    for name in [name for scenario in SCENARIOS for name in tests_with_broker(tests, scenario)]:
        (source,) = tests.glob(f"{name[:4]}-*.c*")
        for part in {"", *parts(source.read_text(errors="replace"), name[:4])}:
            known += [label(name, protocol, part) for protocol in PROTOCOLS]
    return [pattern for pattern in LIBRDKAFKA_LEFT_OUT if not fnmatch.filter(known, f"{pattern}*")]
