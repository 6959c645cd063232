"""Cutting a failing run down to what it needs: delta debugging over the items of its plan.

A smaller run counts if it breaks the same rule; that it does so at another moment, or with other evidence, is fine.
What is left out first is what comes after the failure; then ever smaller parts of the rest, until no single item can
go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from sexton.simulate.faults import Fault
from sexton.simulate.plan import AdminPlan
from sexton.simulate.run import Options, Result, Workers

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Called with the number of items left and of runs so far."""


def shrink(failed: Result, options: Options, workers: Workers, progress: Progress) -> tuple[Options, Result]:
    """The options with the most items left out, and the result of running them."""
    items = replace(options, left_out=frozenset()).plan(failed.seed).items
    late = {
        index
        for index, item in enumerate(items)
        if isinstance(item, Fault | AdminPlan) and item.at_ms > failed.virtual_s * 1000
    }
    everything = frozenset(range(len(items)))
    best = failed
    runs_count = 0

    def without(kept: Sequence[int], parts: Sequence[Sequence[int]]) -> int | None:
        nonlocal best, runs_count
        left_out = everything - set(kept)
        futures = [workers.submit(failed.seed, replace(options, left_out=left_out | set(part))) for part in parts]
        found: int | None = None
        for index, future in enumerate(futures):
            if found is not None:
                future.cancel()
                continue
            result = future.result()
            runs_count += 1
            if result.rule == failed.rule:
                found, best = index, result
        return found

    kept = smallest(
        [index for index in range(len(items)) if index not in options.left_out and index not in late],
        without,
        lambda count: progress(count, runs_count),
    )
    return replace(options, left_out=everything - set(kept)), best


def smallest(
    items: Sequence[T],
    without: Callable[[Sequence[T], Sequence[Sequence[T]]], int | None],
    progress: Callable[[int], None],
) -> list[T]:
    """Delta debugging: what is left when no single item can go. `without` is told what there is and how it is cut, and
    answers with the first part that can be left out of it, or None. `progress` is told how many are left."""
    kept = list(items)
    parts_count = 2
    while kept:
        parts = list(_split(kept, min(parts_count, len(kept))))
        found = without(kept, parts)
        if found is not None:
            kept = [each for each in kept if each not in parts[found]]
        progress(len(kept))
        if found is not None:
            parts_count = max(2, parts_count - 1)
        elif parts_count >= len(kept):
            break
        else:
            parts_count *= 2
    return kept


def _split(items: list[T], parts_count: int) -> Iterator[list[T]]:
    size, left_over = divmod(len(items), parts_count)
    start = 0
    for index in range(parts_count):
        end = start + size + (index < left_over)
        if end > start:
            yield items[start:end]
        start = end


def as_ranges(numbers: frozenset[int]) -> str:
    """`1-3,7`: how a person repeats a shrunk run."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in ranges)


def from_ranges(text: str) -> frozenset[int]:
    numbers: set[int] = set()
    for part in text.split(","):
        if part.strip():
            low, _, high = part.partition("-")
            numbers |= set(range(int(low), int(high or low) + 1))
    return frozenset(numbers)
