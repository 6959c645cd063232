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


class Break(NamedTuple):
    patches: Patch | tuple[Patch, ...]
    profile: Profile | None = Profile.PLAIN
    """Of runs in which it matters. None: whichever the seed draws."""
    minutes: float = 0.5
    """How long runs have to be for it to matter."""

    @contextmanager
    def in_force(self) -> Iterator[None]:
        patches = (self.patches,) if isinstance(self.patches, Patch) else self.patches
        before = [patch.owner.__dict__[patch.attribute] for patch in patches]
        for owner, attribute, replacement in patches:
            setattr(owner, attribute, replacement)
        try:
            yield
        finally:
            for patch, original in zip(patches, before, strict=True):
                setattr(patch.owner, patch.attribute, original)
