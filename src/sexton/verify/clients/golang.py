"""The franz-go client as a program: built once by the `go` on the PATH, and kept where Kafka's jars are kept."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from sexton.harness import jars
from sexton.harness.errors import HarnessError

MODULE: Final = Path(__file__).with_name("go")
BUILD_TIMEOUT_S: Final = 600
"""Go compiles the library, too, the first time: a minute here."""


def version() -> str:
    """Of franz-go, as the module asks for it."""
    found = re.search(r"franz-go (v\S+)", (MODULE / "go.mod").read_text())
    assert found is not None
    return found[1]


def target() -> Path:
    """Where the program is, once it is built: of this version, from the source as it is now."""
    digest = hashlib.sha256((MODULE / "main.go").read_bytes()).hexdigest()[:8]
    return jars.cache_dir().with_name("clients") / f"franz-go-{version()}-{digest}"


def is_built() -> bool:
    return target().exists()


def program() -> Path:
    """Built first if need be."""
    built = target()
    if built.exists():
        return built
    go = shutil.which("go")
    if go is None:
        raise HarnessError("franz-go's client needs `go` (1.25 or newer) on the PATH to be built: https://go.dev/dl")
    return build([go, "build"], ".", MODULE, {"GOFLAGS": "-mod=readonly -buildvcs=false"}, built)


def build(command: Sequence[str], package: str, module: Path, variables: Mapping[str, str], target: Path) -> Path:
    """The program that this command of Go's makes of the package, put in its place when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    done = subprocess.run(
        [*command, "-o", str(partial), package],
        cwd=module,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise HarnessError(f"{target.name} could not be built:\n{done.stdout}")
    partial.rename(target)
    return target
