"""Which topics `--topic` means: a regular expression (RE2) of whole names, for brokers and directories alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

import re2

from sexton.errors import SextonError

_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False  # they would come on the standard error beside ours
_OPTIONS.never_capture = True


class BadPatternError(SextonError):
    """What should be a regular expression is none."""

    exit_code: ClassVar[int] = 64


def compile_pattern(text: str) -> Callable[[str], bool]:
    """Returns a function that says whether a whole name matches. Raises BadPatternError."""
    try:
        pattern = re2.compile(text, _OPTIONS)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        what = f"this is no regular expression ({reason.rstrip(': ')})"
        raise BadPatternError(what, text, "Write RE2 syntax, of whole names: orders|users, or orders.*") from None
    return lambda name: pattern.fullmatch(name) is not None
