"""Rules broken on purpose, one line each: the simulator that does not find these finds nothing.

Each entry replaces one function of the product for the time of a run. Tests run them, and `sexton simulate --break`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

BREAKS: dict[str, Callable[[], tuple[Any, str, Any]]] = {}


@contextmanager
def breaking(name: str | None) -> Iterator[None]:
    """While this lasts, the named rule does not hold."""
    if name is None:
        yield
        return
    owner, attribute, replacement = BREAKS[name]()
    before = owner.__dict__[attribute]
    setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        setattr(owner, attribute, before)
