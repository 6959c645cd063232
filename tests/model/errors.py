"""What an exploration finds."""

from __future__ import annotations


class Violation(Exception):  # noqa: N818 - it is what a search looks for
    """A state or step that must not be. `kind` names what went wrong in one word or two."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
