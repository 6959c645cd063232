"""Kafka's own command line tools, each run in a JVM of its own.

They are the foreign oracle of the tests: what `dump_log` prints about a segment is Kafka's opinion of it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from sexton.harness import class_archives
from sexton.harness.errors import HarnessError
from sexton.harness.jars import DEFAULT_VERSION, classpath, jar_dir, java

TOOL_TIMEOUT_S: Final = 120
"""A tool takes a second or two; dumping a segment of a gigabyte takes most of a minute."""

TOOL_JVM_OPTIONS: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Tools live for a second: start fast, and leave the other core to the broker under test."""

STORAGE_TOOL: Final = "kafka.tools.StorageTool"
"""Still here in Kafka 4, unlike the tools that moved to `org.apache.kafka.tools`."""

DUMP_TOOL: Final = "org.apache.kafka.tools.DumpLogSegments"
DUMP_TOOL_BEFORE_4: Final = "kafka.tools.DumpLogSegments"


DUMP_FAULTS: Final = (
    "isvalid: false",
    "Mismatches in :",
    "Found timestamp mismatch in :",
    "Found out of order timestamp in :",
    "The following indexed offsets are not found in :",
)
"""How DumpLogSegments words a bad checksum, offset index or time index. It also prints "Non-consecutive offsets
in", which is no fault of a log that was compacted."""

LOGGING_CHATTER: Final = ("log4j:WARN", "SLF4J:")
"""How a logging library starts the lines in which it misses its configuration, which tools do without."""


def tool_command(main_class: str, *args: str, version: str = DEFAULT_VERSION) -> list[str]:
    """The command line of a tool, for callers that want the process: to feed it, or to run several."""
    options = (*TOOL_JVM_OPTIONS, *class_archives.options(f"kafka-{version}", jar_dir(version)))
    return [java(), *options, "-cp", classpath(version), main_class, *args]


def run_tool(
    main_class: str,
    *args: str,
    version: str = DEFAULT_VERSION,
    stdin: str = "",
    timeout_s: float = TOOL_TIMEOUT_S,
) -> str:
    """What a tool prints on its standard output; one that fails raises, with everything it said.

    E.g. `run_tool("org.apache.kafka.tools.TopicCommand", "--list", "--bootstrap-server", kafka.bootstrap)`.
    """
    return _run(main_class, args, version, stdin, timeout_s).stdout


def _run(
    main_class: str, args: Sequence[str], version: str, stdin: str, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            tool_command(main_class, *args, version=version),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise HarnessError(
            f"{main_class} of Kafka {version} did not end in {timeout_s:g} s; it was killed. If it only had "
            "much to do, pass a larger timeout_s"
        ) from late
    if done.returncode != 0:
        raise HarnessError(
            f"{main_class} {' '.join(args)} of Kafka {version} failed with exit code {done.returncode}.\n"
            f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
        )
    return done


def dump_log(
    paths: Path | Iterable[Path],
    *flags: str,
    version: str = DEFAULT_VERSION,
    timeout_s: float = TOOL_TIMEOUT_S,
) -> str:
    """What Kafka prints about `.log`, `.index`, `.timeindex`, `.txnindex` or `.snapshot` files.

    Useful flags: `--print-data-log`, `--deep-iteration`, `--verify-index-only`, and `--index-sanity-check`, which
    looks at an index's size and last entry only. What the tool finds wrong it prints, nearly always, and exits
    with 0: look for DUMP_FAULTS in the text. It prints most of them on its standard error, hence last here.
    """
    files = [str(path) for path in ([paths] if isinstance(paths, Path) else paths)]
    if not files:
        raise HarnessError("dump_log was given no files: is the partition directory empty?")
    for file in files:
        if "," in file:
            raise HarnessError(f"DumpLogSegments separates files by commas, so it cannot read {file}: rename it")
        if not Path(file).is_file():
            raise HarnessError(f"there is no file {file} to dump")
    main_class = DUMP_TOOL_BEFORE_4 if version.startswith("3.") else DUMP_TOOL
    done = _run(main_class, ("--files", ",".join(files), *flags), version, "", timeout_s)
    findings = [line for line in done.stderr.splitlines(keepends=True) if not line.startswith(LOGGING_CHATTER)]
    return done.stdout + "".join(findings)


def format_storage(configs: Iterable[Path], cluster_id: str, *args: str, version: str = DEFAULT_VERSION) -> None:
    """Give log directories their identity, without which Kafka does not start: one `server.properties` each.

    All at once, since each takes a JVM a second or two.
    """
    running = []
    for config in configs:
        options = ("format", "--cluster-id", cluster_id, "--config", str(config), *args)
        running.append(
            subprocess.Popen(
                tool_command(STORAGE_TOOL, *options, version=version),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = [_output_of(process) for process in running]
    for process, output in zip(running, outputs, strict=True):
        if process.returncode != 0:
            raise HarnessError(f"{STORAGE_TOOL} failed with exit code {process.returncode}:\n{output}")


def _output_of(process: subprocess.Popen[str]) -> str:
    """All that a tool prints until it ends, which it is made to do in time."""
    try:
        return process.communicate(timeout=TOOL_TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]
