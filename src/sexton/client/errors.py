"""What a caller needs to know about a call that failed: was it carried out, surely not, or is it unknown?"""

from __future__ import annotations

from typing import ClassVar

from sexton.errors import SextonError
from sexton.protocol.errors import ErrorCode

START_ONE = "Is it running? Start one with `sexton up`, or name another with --bootstrap-server"


class NotConnectedError(SextonError):
    """Nobody answered, or the connection had ended before the request was sent: it was surely not carried out."""

    exit_code: ClassVar[int] = 69


class ConnectionLostError(SextonError):
    """The connection ended, or the time ran out, after the request was sent: whether it was carried out is unknown."""

    exit_code: ClassVar[int] = 75


class BadAnswerError(SextonError):
    """The other side does not speak Kafka's protocol, or not a version of it that we know."""

    exit_code: ClassVar[int] = 76


class RefusedError(SextonError):
    """The broker answered with an error: the request was not carried out. `code` is Kafka's."""

    exit_code: ClassVar[int] = 1

    def __init__(
        self, what: str, place: str = "", remedy: str = "", code: int = ErrorCode.unknown_server_error
    ) -> None:
        super().__init__(what, place, remedy)
        self.code = ErrorCode(code)

    def __reduce__(self) -> tuple[type[SextonError], tuple[str, str, str, int]]:  # type: ignore[override]
        return type(self), (self.what, self.place, self.remedy, self.code.value)
