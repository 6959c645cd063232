"""Cutting a failing run down to what it needs: delta debugging over the items of its plan.

A smaller run counts if it breaks the same rule; that it does so at another moment, or with other evidence, is fine.
What is left out first is what comes after the failure; then ever smaller parts of the rest, until no single item can
go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from sexton.simulate.faults import Fault
from sexton.simulate.plan import AdminPlan
from sexton.simulate.run import Options, Result, Workers

Progress = Callable[[int, int], None]
"""Told how many items are left and how many runs it took so far."""


def shrink(failed: Result, options: Options, workers: Workers, progress: Progress) -> tuple[Options, Result]:
    """The options with the most items left out, and the result of running them."""
    items = replace(options, left_out=frozenset()).plan(failed.seed).items
    late = {
        index
        for index, item in enumerate(items)
        if isinstance(item, Fault | AdminPlan) and item.at_ms > failed.virtual_s * 1000
    }
    left_out = set(options.left_out) | late
    best = failed
    kept = [index for index in range(len(items)) if index not in left_out]
    parts_count = 2
    runs_count = 0
    while kept:
        parts = list(_split(kept, min(parts_count, len(kept))))
        found: Result | None = None
        futures = [
            workers.submit(failed.seed, replace(options, left_out=frozenset(left_out) | set(part))) for part in parts
        ]
        for part, future in zip(parts, futures, strict=True):
            if found is not None:
                future.cancel()
                continue
            result = future.result()
            runs_count += 1
            if result.rule == failed.rule:
                found = best = result
                left_out |= set(part)
                kept = [index for index in kept if index not in left_out]
        progress(len(kept), runs_count)
        if found is not None:
            parts_count = max(2, parts_count - 1)
        elif parts_count >= len(kept):
            break
        else:
            parts_count *= 2
    return replace(options, left_out=frozenset(left_out)), best


def _split(items: list[int], parts_count: int) -> Iterator[list[int]]:
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
