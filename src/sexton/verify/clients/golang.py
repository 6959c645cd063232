"""The franz-go client as a program: built once, and kept where Kafka's jars are kept."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

from sexton.harness import golang, jars

MODULE: Final = Path(__file__).with_name("go")


def version() -> str:
    """The version of franz-go that the Go module requires."""
    found = re.search(r"franz-go (v\S+)", (MODULE / "go.mod").read_text())
    assert found is not None
    return found[1]


def target() -> Path:
    """Where the program is, once it is built: of this version, from the source as it is now."""
    return jars.cache_dir().with_name("clients") / f"franz-go-{version()}-{source_digest()}"


def source_digest() -> str:
    """Of the source as it is now."""
    sources = b"".join(path.read_bytes() for path in sorted(MODULE.glob("*.go")))
    return hashlib.sha256(sources).hexdigest()[:8]


def is_built() -> bool:
    return target().exists()


def program() -> Path:
    """Built first if need be."""
    built = target()
    if built.exists():
        return built
    variables = {"GOFLAGS": "-mod=readonly -buildvcs=false"}
    return golang.build([golang.go(), "build"], ".", MODULE, variables, built)
