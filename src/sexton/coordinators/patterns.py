"""Regular expressions from clients: topic subscriptions, filters of transactional ids.

Kafka uses RE2's syntax (RE2/J) because they come from outside: with a backtracking matcher, such as Python's `re`, one
client could stop the broker with `(a+)+b`. RE2 itself matches in linear time, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import re2

from sexton.protocol.errors import ErrorCode, KafkaError

LENGTH_MAX: Final = 10_000
COMPILED_COUNT_MAX: Final = 64
"""Size of the cache. Members of a group send the same expression; few groups send any."""

PROGRAM_BYTES_MAX: Final = 1 << 20
"""For what RE2 makes of an expression. With its default, eight times as much, `(?i)\\pL{300}` takes a tenth of a second
to compile, in which a broker does nothing else; with this, a hundredth at most."""

_OPTIONS: Final = re2.Options()
_OPTIONS.max_mem = PROGRAM_BYTES_MAX
_OPTIONS.log_errors = False  # the client gets the error
_OPTIONS.never_capture = True


@lru_cache(maxsize=COMPILED_COUNT_MAX)
def compile_pattern(text: str, field: str) -> Callable[[str], bool]:
    """Returns a function that says whether a whole name matches. Raises INVALID_REGULAR_EXPRESSION, which names the
    field of the request."""
    if len(text) > LENGTH_MAX:
        raise _refused(text, field, f"it has {len(text)} characters, {LENGTH_MAX} are allowed")
    try:
        pattern = re2.compile(text, _OPTIONS)
    except re2.error as error:
        raise _refused(text, field, str(error)) from error
    return lambda name: pattern.fullmatch(name) is not None


def _refused(text: str, field: str, why: str) -> KafkaError:
    what = f"{field} `{text[:100]}` is not a valid regular expression: {why}."
    return KafkaError(ErrorCode.invalid_regular_expression, what)
