"""A table in which nearly every cell is "yes", in a form that people can read: its rows, and the cells that differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

SHOWN, NOT_SHOWN, NOT_TESTED = "yes", "**no**", "not tested"


def all_yes_except(clients: Sequence[str], features: Mapping[str, str], cell: Callable[[str, str], str]) -> list[str]:
    """`features` are names and what readers are told of them; `cell` takes a client and a feature's name."""
    lines = [f"- {told}" for told in features.values()]
    by_reason: dict[tuple[str, str], list[str]] = {}
    for client in clients:
        for name, told in features.items():
            if (said := cell(client, name)) != SHOWN:
                by_reason.setdefault((client, said), []).append(told)
    if not by_reason:
        return [*lines, "", "All yes.", ""]
    rows = [f"| {client} | {said} | {'; '.join(told)} |" for (client, said), told in by_reason.items()]
    return [*lines, "", "All yes, except:", "", "| | | |", "|---|---|---|", *rows, ""]
