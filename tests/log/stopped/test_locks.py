"""While we work on a log directory no broker does, and the other way round."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sexton.errors import EnvironmentFailure, LogInUseError, NotALogError
from sexton.log.stopped import locks
from tests.ownership import theirs

TAKE_AND_WAIT = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""
"""What a broker does, in a process of its own: a lock of this kind never excludes its own process."""


def try_elsewhere(log_dir: Path) -> bool:
    command = [sys.executable, "-c", TAKE_AND_WAIT, str(log_dir / locks.LOCK_FILE)]
    return subprocess.run(command, input=b"", capture_output=True, check=False).returncode == 0


def test_nobody_else_can_take_the_lock_while_we_hold_it_and_then_they_can(tmp_path: Path) -> None:
    with locks.hold(tmp_path):
        assert not try_elsewhere(tmp_path)
    assert try_elsewhere(tmp_path)


def test_a_lock_that_is_held_is_refused_with_the_holders_pid_and_can_be_taken_afterwards(tmp_path: Path) -> None:
    lock = tmp_path / locks.LOCK_FILE
    lock.touch()
    with subprocess.Popen(
        [sys.executable, "-c", TAKE_AND_WAIT, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LogInUseError, match=f"with pid {holder.pid} holds") as caught, locks.hold(tmp_path):
            pass
        assert "Stop the broker" in str(caught.value)
        holder.communicate(b"")
    with locks.hold(tmp_path):
        pass


def test_taking_it_twice_in_one_process_is_refused_and_does_not_drop_the_first(tmp_path: Path) -> None:
    with locks.hold(tmp_path):
        with pytest.raises(LogInUseError, match="this process"), locks.hold(tmp_path):
            pass
        assert not try_elsewhere(tmp_path)
    with locks.hold(tmp_path):
        pass


def test_it_is_released_when_the_work_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locks.hold(tmp_path):
        raise ZeroDivisionError
    assert try_elsewhere(tmp_path)


def test_two_log_directories_are_held_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with locks.hold(tmp_path / "one"), locks.hold(tmp_path / "two"):
        assert not try_elsewhere(tmp_path / "one")


def test_a_path_that_is_no_directory_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(NotALogError), locks.hold(tmp_path / "missing"):
        pass


def test_a_directory_that_cannot_be_written_is_the_environments_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated, because root may write anywhere."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(EnvironmentFailure, match="Permission denied"), locks.hold(tmp_path):
        pass
    assert not (tmp_path / locks.LOCK_FILE).exists()


@pytest.mark.parametrize(("module", "call", "number"), [(os, "open", errno.EROFS), (fcntl, "lockf", errno.ENOLCK)])
def test_a_file_system_that_is_read_only_or_has_no_locks_is_the_environments_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, call: str, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(module, call, fail)
        with pytest.raises(EnvironmentFailure, match=os.strerror(number)), locks.hold(tmp_path):
            pass
    with locks.hold(tmp_path):
        pass


def test_a_lock_on_a_file_that_a_stopping_broker_has_just_deleted_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka deletes its lock file when it stops. Here it does so after the file was opened, before it is locked."""
    lockf, deletions = fcntl.lockf, [tmp_path / locks.LOCK_FILE]

    def stop_broker_then_lock(descriptor: int, operation: int) -> None:
        if deletions:
            deletions.pop().unlink()
        lockf(descriptor, operation)

    monkeypatch.setattr(fcntl, "lockf", stop_broker_then_lock)
    with locks.hold(tmp_path):
        assert deletions == []
        assert not try_elsewhere(tmp_path), "a broker that starts now makes a lock file of its own"
    assert try_elsewhere(tmp_path)


def test_a_lock_file_that_is_deleted_again_and_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "lockf", lambda *_: (tmp_path / locks.LOCK_FILE).unlink())
    with pytest.raises(LogInUseError, match="deleted as often"), locks.hold(tmp_path):
        pass


def test_the_lock_file_that_stays_belongs_to_the_brokers_user_whoever_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "replication-offset-checkpoint").touch(0o640)
    given = theirs(tmp_path / "replication-offset-checkpoint", monkeypatch)
    with locks.hold(tmp_path):
        pass
    assert given == [(tmp_path / locks.LOCK_FILE, 12345, 54321)]
    assert stat.S_IMODE((tmp_path / locks.LOCK_FILE).stat().st_mode) == 0o640


def test_a_brokers_own_lock_needs_no_right_to_give_files_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meta.properties").touch()
    theirs(tmp_path / "meta.properties", monkeypatch, refuses=True)
    with locks.hold(tmp_path):
        assert not try_elsewhere(tmp_path)
