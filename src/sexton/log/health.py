"""Whether a log can still be used, and what its callers are told if not.

After an I/O error it is unknown what is on the device, so the log gives up: `failure` is set and appends are refused
until the log is opened again. A full disk is no such error: the append is undone as a whole, and the next may succeed.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sexton.errors import CorruptLogError
from sexton.ports.disk import PASSING_ERRORS
from sexton.protocol.errors import ErrorCode, KafkaError, StorageError

logger = logging.getLogger(__name__)


class Health:
    def __init__(self, place: str) -> None:
        self._place = place
        self.failure: OSError | None = None
        """The I/O error after which the log gave up."""
        self.damage: CorruptLogError | None = None
        """Corruption found in records that were once flushed: the broker has the log rebuilt from other replicas."""
        self.is_deleted = False
        """The directory may belong to another log by now: an operation that waited for a lock, or comes late, must not
        touch it."""

    def check_usable(self) -> None:
        self.check_not_deleted()
        if self.failure is None:
            return
        what = f"{self._place}: the disk failed ({_reason(self.failure)}); repair it and start the broker again"
        raise StorageError(what, self.failure)

    def check_not_deleted(self) -> None:
        """Called after every wait for a lock: what is then done by path must be done to this log."""
        if self.is_deleted:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"{self._place}: this log was deleted")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Wraps all code that changes files, except appends."""
        try:
            yield
        except OSError as error:
            raise self.storage_error(error) from error

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """Wraps code that removes records. Whatever stops it halfway, files and memory no longer agree: the log gives
        up."""
        try:
            yield
        except OSError as error:
            self.failure = error
            remedy = "Repair the disk and start the broker again"
            raise StorageError(f"{self._place}: {_reason(error)}. {remedy}", error) from error
        except Exception as error:
            self.failure = OSError(f"a truncation stopped halfway: {error!r}")
            if isinstance(error, CorruptLogError):
                raise self.unreadable(error) from error
            raise

    def storage_error(self, error: OSError) -> KafkaError:
        if error.errno not in PASSING_ERRORS:
            self.failure = error
        return StorageError(f"{self._place}: {_reason(error)}. {_remedy(error)}", error)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Wraps all code that reads segments, except fetches."""
        try:
            yield
        except (CorruptLogError, OSError) as error:
            raise self.unreadable(error) from error

    def unreadable(self, error: CorruptLogError | OSError) -> KafkaError:
        """Remembers an I/O error, or corruption in what was read: the broker then hands the partition to other
        replicas."""
        if isinstance(error, OSError):
            self.check_not_deleted()
            return self.storage_error(error)
        if self.damage is None:
            logger.error("%s: %s", self._place, error)
        self.damage = error
        return StorageError(f"{self._place}: records on disk are damaged; see the broker's log", error)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room on the disk: appends then succeed again by themselves"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "Raise the limit of open files (ulimit -n)"
    return "Repair the disk and start the broker again"
