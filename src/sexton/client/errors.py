"""Errors of the client. Each says whether the request was carried out, was not, or whether that is unknown."""

from __future__ import annotations

from typing import ClassVar, Final

from sexton.errors import SextonError
from sexton.protocol.errors import ErrorCode

START_ONE = "Is it running? Start one with `sexton up`, or name another with --bootstrap-server"


class NotConnectedError(SextonError):
    """The broker could not be reached, or the connection was closed before the request was sent: it was not carried
    out."""

    exit_code: ClassVar[int] = 69


class ConnectionLostError(SextonError):
    """The connection was closed, or the request timed out, after it was sent: whether it was carried out is unknown."""

    exit_code: ClassVar[int] = 75


class BadAnswerError(SextonError):
    """The other side does not use Kafka's protocol, or not a version of it that we support."""

    exit_code: ClassVar[int] = 76


class CorruptRecordsError(SextonError):
    """A broker sent records that are damaged: a CRC does not match, or what should be a batch is none."""

    exit_code: ClassVar[int] = 65


class RefusedError(SextonError):
    """The broker returned an error. `code` is Kafka's; whether a later attempt may succeed is `code.retriable`."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, place: str = "", remedy: str = "", code: int = -1) -> None:
        super().__init__(what, place, remedy)
        self.code = ErrorCode(code)

    def __reduce__(self) -> tuple[type[SextonError], tuple[str, str, str, int]]:  # type: ignore[override]
        return type(self), (self.what, self.place, self.remedy, int(self.code))


class ProduceFailedError(RefusedError):
    """The records are not in the log."""


class ProduceUnknownError(SextonError):
    """The records may be in the log, now or later, or not."""

    exit_code: ClassVar[int] = 75


_EXPLANATIONS: Final[dict[ErrorCode, tuple[str, str]]] = {
    ErrorCode.unknown_topic_or_partition: (
        "there is no such topic or partition",
        "`sexton topic list` shows what there is, `sexton topic create NAME` makes a topic",
    ),
    ErrorCode.topic_already_exists: ("a topic of this name exists already", "`sexton topic describe` shows it"),
    ErrorCode.invalid_topic_exception: (
        "this is no valid topic name",
        "Use up to 249 letters, digits, dots, underscores and hyphens",
    ),
    ErrorCode.leader_not_available: (
        "the partition has no leader: all its in-sync replicas are away",
        "`sexton cluster status` shows which brokers are missing; start them",
    ),
    ErrorCode.not_leader_or_follower: ("leadership is moving", "Try again in a moment"),
    ErrorCode.not_enough_replicas: (
        "fewer replicas are in sync than min.insync.replicas asks for",
        "`sexton topic describe` shows which are missing; start those brokers",
    ),
    ErrorCode.message_too_large: (
        "the records are larger than the topic's max.message.bytes",
        "Send smaller ones, or raise it: `sexton config set --topic NAME max.message.bytes=...`",
    ),
    ErrorCode.offset_out_of_range: (
        "the log has no such offset",
        "`sexton topic offsets` shows the first and the last one",
    ),
    ErrorCode.group_id_not_found: ("there is no such group", "`sexton group list` shows what there is"),
    ErrorCode.transactional_id_not_found: (
        "no coordinator knows this transactional id",
        "`sexton txn list` shows what there is",
    ),
    ErrorCode.non_empty_group: ("the group has members", "Stop its consumers first"),
    ErrorCode.unknown_member_id: ("the group has members", "Stop its consumers first"),
    ErrorCode.coordinator_not_available: ("the group's coordinator is moving", "Try again in a moment"),
    ErrorCode.invalid_partitions: ("this is no possible number of partitions", "It can grow only"),
    ErrorCode.invalid_replication_factor: (
        "there are fewer live brokers than the replication factor asks for",
        "Ask for fewer replicas (--replicas), or start more brokers",
    ),
    ErrorCode.election_not_needed: ("the preferred replica leads already", ""),
    ErrorCode.no_reassignment_in_progress: ("no reassignment is in progress", ""),
    ErrorCode.unsupported_version: ("the broker does not know this request", "It may be too old for it"),
}


def refusal(code: int, place: str, message: str | None = None) -> RefusedError:
    """Returns the error for a code, with an explanation; with the broker's own message where it sent one that says
    more."""
    known = ErrorCode(code)
    what, remedy = _EXPLANATIONS.get(known, (known.name.replace("_", " "), ""))
    if message and known != ErrorCode.unknown_topic_or_partition:
        what = message.rstrip(". ")
    return RefusedError(what, place, remedy, known)


def check(code: int, place: str, message: str | None = None) -> None:
    if code != ErrorCode.none:
        raise refusal(code, place, message)
