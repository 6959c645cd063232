"""Where compiled kernels are kept, also for a user who has no home."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sexton import jit

NO_DIRECTORY = "/dev/null/home"
"""Nobody can make a directory there, not even root."""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is left to a user without a home, and without a choice of their own."""
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", NO_DIRECTORY)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"sexton-kernels-{os.geteuid()}"


def test_kernels_work_for_a_user_whose_home_does_not_exist(tmp_path: Path) -> None:
    program = "from sexton import jit; from sexton.records.kernels import keys, primitives; print(jit.cache_dir())"
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "HOME": NO_DIRECTORY, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path}/sexton-kernels-")


def test_the_users_own_choice_comes_first_and_then_the_home(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(temporary.parent / "cache"))
    assert str(jit.cache_dir()).startswith(f"{temporary.parent}/cache/sexton/kernels/")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(temporary.parent / "chosen"))
    assert str(jit.cache_dir()).startswith(f"{temporary.parent}/chosen/")


def test_a_temporary_cache_is_nobody_elses(temporary: Path) -> None:
    assert str(jit.cache_dir()).startswith(f"{temporary}/")
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700


def test_a_user_without_an_entry_has_no_home_and_a_temporary_cache(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    assert str(jit.cache_dir()).startswith(f"{temporary}/")


@pytest.mark.parametrize("made_by", ["somebody who lets others in", "somebody else", "a link"])
def test_what_others_may_have_put_there_is_never_run(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, made_by: str
) -> None:
    if made_by == "a link":
        (temporary.parent / "theirs").mkdir(mode=0o700)
        temporary.symlink_to(temporary.parent / "theirs")
    else:
        temporary.mkdir()
        temporary.chmod(0o777 if "lets" in made_by else 0o700)
    if made_by == "somebody else":
        other = os.geteuid() + 1
        temporary.rename(temporary.with_name(f"sexton-kernels-{other}"))
        monkeypatch.setattr(os, "geteuid", lambda: other)
    assert jit.cache_dir() is None, "kernels are then compiled by every process"
