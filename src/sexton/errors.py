"""The failures Sexton expects, each with what to do next.

There are three kinds of failure. A bug is an ordinary exception and crashes loudly. A mistake of a peer or an
operator, or data that is not what it claims to be, is one of the classes below; so is a broken environment.
Code that sees one of these can tell a person three things: where, what, and what now.

The classes are named for the caller's next step, and each carries the exit code its command ends with (the
numbers of BSD's sysexits where one fits, so that a shell script can tell "try again" from "repair the disk").
They cross process borders (Spark workers pickle what they raise), so what an error knows is exactly its three
strings.
"""

from __future__ import annotations

from typing import ClassVar


class SextonError(Exception):
    """Something went wrong that a person can act on."""

    exit_code: ClassVar[int] = 70

    def __init__(self, what: str, place: str = "", remedy: str = "") -> None:
        super().__init__(what, place, remedy)
        self.what = what
        self.place = place
        self.remedy = remedy

    def __str__(self) -> str:
        start = f"{self.place}: {self.what}" if self.place else self.what
        return f"{start}. {self.remedy}" if self.remedy else start

    def __reduce__(self) -> tuple[type[SextonError], tuple[str, str, str]]:
        # Spelled out, because a subclass that takes other arguments must notice that it cannot travel.
        return type(self), (self.what, self.place, self.remedy)


class CorruptLogError(SextonError):
    """Bytes on disk contradict their own checksum, length or format. Reading on would be guessing."""

    exit_code: ClassVar[int] = 65


class DamagedObjectError(SextonError):
    """An object in a store is shorter than it must be, or contradicts its own checksums or what refers to it."""

    exit_code: ClassVar[int] = 65


class UnsupportedFormatError(SextonError):
    """Well-formed as far as can be told, but of a version or codec that this build does not read."""

    exit_code: ClassVar[int] = 76


class NotALogError(SextonError):
    """The path is not a log directory, a partition directory or a file of one. Usually a mistyped path."""

    exit_code: ClassVar[int] = 66


class CorruptHistoryError(SextonError):
    """A line of a history cannot be read, or contradicts the lines before it. Judging the rest would be guessing."""

    exit_code: ClassVar[int] = 65


class NotAHistoryError(SextonError):
    """The file is missing, or has no operation. Usually a mistyped path, or a run that never began."""

    exit_code: ClassVar[int] = 66


class LogInUseError(SextonError):
    """Another process holds the lock. Nothing is wrong with the data; stop that process or wait."""

    exit_code: ClassVar[int] = 75


class EnvironmentFailure(SextonError):  # noqa: N818 - the environment failed; the program made no error
    """The machine cannot do what it must: disk full, file unreadable, permission denied."""

    exit_code: ClassVar[int] = 74
