"""A mistake, or a passing state, that the client is told about with one of Kafka's error codes."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError"]


class KafkaError(Exception):
    """Raised wherever it is noticed; the API module puts `code` (and `message`, where the protocol has a field for it)
    into its answer. Expected, so never logged with a traceback."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name.upper()}: {self.message}" if self.message else self.code.name.upper()
