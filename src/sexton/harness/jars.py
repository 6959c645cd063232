"""Apache Kafka's jars, fetched once by Maven and kept per version, in any version since KRaft.

A version's directory appears under its final name only when it is complete (Maven copies into a temporary
one, then a rename), so whoever finds it may use it without a lock. It carries a digest of the pom it came
from: a changed pom fetches again instead of running yesterday's jars.

Nothing here ever skips. In CI a skipped test is a failure, so a missing tool is an error that says how to
install it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sexton.harness.errors import HarnessError

VERSIONS: Final = ("4.3.0", "3.9.2")
"""Those that the project is tested with. Others run as well: any that Maven has, since KRaft."""

DEFAULT_VERSION: Final = VERSIONS[0]

CACHE_VARIABLE: Final = "SEXTON_KAFKA_CACHE"
CHECKOUT_DIR: Final = Path(__file__).resolve().parents[3]
"""Of the project's source, if this is run from there."""

VERSION_PATTERN: Final = re.compile(r"(?P<major>3(?=\.[3-9]\.)|4)\.\d+\.\d+")
CLIENT_VERSION_PATTERN: Final = re.compile(r"0\.11\.0\.\d|[1-4]\.\d+\.\d+")
"""Since transactions."""
POM: Final = Path(__file__).with_name("pom.xml")
CLIENTS_POM: Final = Path(__file__).with_name("clients-pom.xml")
STAMP_NAME: Final = "pom.sha256"

FETCH_TIMEOUT_S: Final = 600
"""About 60 MB a version: half a minute here. Ten minutes is a network that is not going to deliver."""

MAVEN_OUTPUT_LINES: Final = 30
"""Maven names the artifact it could not get near the end of what it prints."""

LOG4J1_CONFIG: Final = """\
log4j.rootLogger = INFO, file
log4j.appender.file = org.apache.log4j.FileAppender
log4j.appender.file.File = {path}
log4j.appender.file.layout = org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern = {pattern}
"""

LOG4J2_CONFIG: Final = """\
status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = {pattern}
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""

INSTALL_HINT: Final = "sudo apt-get install --yes openjdk-17-jre-headless maven"


def java() -> str:
    """The `java` to run: JAVA_HOME's if it is set, as Kafka's own scripts do, else the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        found = shutil.which("java", path=str(Path(home) / "bin"))
        if found is None:
            raise HarnessError(f"JAVA_HOME is {home}, which has no bin/java: correct it or unset it")
        return found
    return _command("java")


def classpath(version: str = DEFAULT_VERSION) -> str:
    """A classpath with that version's broker and tools, fetched first if need be."""
    return str(jar_dir(version) / "*")


def client_classpath(version: str) -> str:
    """A classpath with that version's Java client, which may be older than any broker that runs here. Brokers' jars
    have it, too."""
    if VERSION_PATTERN.fullmatch(version) is not None and is_fetched(version):
        return classpath(version)
    if CLIENT_VERSION_PATTERN.fullmatch(version) is None:
        raise HarnessError(f"{version} is no version of Kafka's Java client with transactions (0.11.0.0 or newer)")
    name = f"kafka-client-{version}"
    return str(fetched_jars(CLIENTS_POM, "client", name, (f"-Dkafka.version={version}",)) / "*")


def logging_config(version: str, path: Path, pattern: str) -> tuple[str, str]:
    """A configuration that sends every logger at INFO to one file, for the logging backend in that version's
    jars, and the JVM option that the configuration's own path is to be appended to."""
    if version.startswith("3."):
        return LOG4J1_CONFIG.format(path=path, pattern=pattern), "-Dlog4j.configuration=file:"
    return LOG4J2_CONFIG.format(path=path, pattern=pattern), "-Dlog4j2.configurationFile="


def jar_dir(version: str = DEFAULT_VERSION) -> Path:
    """The directory that holds that version's jars, all of them. The first call may take a minute."""
    matched = VERSION_PATTERN.fullmatch(version)
    if matched is None:
        raise HarnessError(
            f"{version} is no version of Apache Kafka that runs without ZooKeeper (3.3.0 or newer). "
            f"Tested are {', '.join(VERSIONS)}"
        )
    return fetched_jars(POM, f"kafka-{matched['major']}", f"kafka-{version}", (f"-Dkafka.version={version}",))


def is_fetched(version: str = DEFAULT_VERSION) -> bool:
    return _is_complete(cache_dir() / f"kafka-{version}", POM)


def fetched_jars(pom: Path, profile: str, name: str | None = None, options: Sequence[str] = ()) -> Path:
    """The directory that holds the jars that this profile of this pom asks for, under the profile's name or another."""
    name = name or profile
    target = cache_dir() / name
    if _is_complete(target, pom):
        return target
    with locked(target.with_name(f"{name}.lock")):
        if not _is_complete(target, pom):  # another process may have fetched it while we waited for the lock
            _fetch(pom, [f"--activate-profiles={profile}", *options], target)
    return target


def cache_dir() -> Path:
    """In a checkout of the project its own `build`; else where the user's caches are."""
    override = os.environ.get(CACHE_VARIABLE)
    if override:
        return Path(override).resolve()
    if (CHECKOUT_DIR / "pyproject.toml").exists():
        return CHECKOUT_DIR / "build" / "kafka"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sexton" / "kafka"


def _fetch(pom: Path, options: Sequence[str], target: Path) -> None:
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a fetch that was killed; the lock is ours now
    _run_maven(pom, options, partial)
    (partial / STAMP_NAME).write_text(_pom_digest(pom))
    outdated = target.with_name(f"{target.name}.outdated")
    shutil.rmtree(outdated, ignore_errors=True)
    if target.exists():  # moved away, not removed: brokers that run from it find the same names in the new one
        target.rename(outdated)
    partial.rename(target)
    shutil.rmtree(outdated, ignore_errors=True)


def _run_maven(pom: Path, options: Sequence[str], output_dir: Path) -> None:
    command = [
        _command("mvn"),
        "--batch-mode",
        "--no-transfer-progress",
        "--quiet",
        f"--file={pom}",
        *options,
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={output_dir}",
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise HarnessError(
            f"Maven did not deliver {output_dir.stem} in {FETCH_TIMEOUT_S} s: check the network, then run "
            "again (what Maven already has is in its local repository)"
        ) from late
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-MAVEN_OUTPUT_LINES:])
        raise HarnessError(
            f"Maven could not fetch {output_dir.stem} (exit code {done.returncode}). Check that this machine "
            "reaches Maven Central, or a mirror named in Maven's settings.xml, then run again. It said:\n"
            f"{tail}"
        )


def _is_complete(directory: Path, pom: Path) -> bool:
    try:
        return (directory / STAMP_NAME).read_text() == _pom_digest(pom)
    except FileNotFoundError:
        return False


def _pom_digest(pom: Path) -> str:
    return hashlib.sha256(pom.read_bytes()).hexdigest()


def _command(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise HarnessError(f"{name} is not on the PATH, and real Kafka needs it. Install: {INSTALL_HINT}")
    return found


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Held by one process at a time. The kernel lets go when it dies, so a stale file blocks nobody."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
