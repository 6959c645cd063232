"""What it means to break something: pieces of the product that are replaced while a run lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sexton.simulate.plan import Profile


class Patch(NamedTuple):
    """One function, property or constant of the product, by its owner (a class or a module), and what stands in."""

    owner: Any
    attribute: str
    replacement: Any

    @property
    def original(self) -> Any:
        """What is replaced, as it is while the break is not in force."""
        return self.owner.__dict__[self.attribute]


class Break(NamedTuple):
    patches: Patch | tuple[Patch, ...]
    profile: Profile | None = Profile.PLAIN
    """Of runs in which it matters. None: whichever the seed draws."""
    minutes: float = 0.5
    """How long runs have to be for it to matter."""

    @property
    def pieces(self) -> tuple[Patch, ...]:
        return (self.patches,) if isinstance(self.patches, Patch) else self.patches

    @contextmanager
    def in_force(self) -> Iterator[None]:
        before = [patch.original for patch in self.pieces]
        for owner, attribute, replacement in self.pieces:
            setattr(owner, attribute, replacement)
        try:
            yield
        finally:
            for patch, original in zip(self.pieces, before, strict=True):
                setattr(patch.owner, patch.attribute, original)
