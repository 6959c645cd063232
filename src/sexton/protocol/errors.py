"""An error, permanent or retriable, that the client gets as one of Kafka's error codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError", "RecordFault", "RecordsError"]


class KafkaError(Exception):
    """Raised where the error is found; the API module puts `code` (and `message`, where the protocol has a field for
    it) into its response. It is expected, so it is never logged with a traceback."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name.upper()}: {self.message}" if self.message else self.code.name.upper()


class StorageError(KafkaError):
    """A disk that failed or is full, or damage on it. `message` is for clients, to whom a broker's paths say nothing;
    the text of the exception, for the broker's log, has the `cause` as well."""

    def __init__(self, message: str, cause: Exception) -> None:
        super().__init__(ErrorCode.kafka_storage_error, message)
        self.cause = cause

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.cause})"


class RecordFault(NamedTuple):
    """Why a batch was refused because of one of its records, counted from 0."""

    record: int
    message: str


class RecordsError(KafkaError):
    """A batch was refused because of some of its records (KIP-467): clients fail those, and may send the others
    again."""

    def __init__(self, code: ErrorCode, message: str, faults: Sequence[RecordFault]) -> None:
        super().__init__(code, message)
        self.faults = faults
