"""Which client ran which transactions: a table of docs/clients.md. Its rows are the names of the tests."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from tests.interop.clients import Client
from tests.interop.exceptions import NOT_SHOWN, NOT_TESTED, SHOWN, all_yes_except
from tests.transactions.clients import CLIENTS, SESSIONS, TOLD_OFFSETS

MODULES: Final = {
    "test_clients": CLIENTS,
    "test_versions": CLIENTS,
    "test_offsets": TOLD_OFFSETS,
    "test_sessions": SESSIONS,
}
"""Those whose tests are run with every one of these."""

HEAD: Final = """\
## Transactions

Every client that knows them, in every version, runs each of these tests (`tests/transactions/`, which also has those of
late requests, kills and bad input; [transactions.md](transactions.md) says what they mean for an application).
"""


def rows() -> Iterator[tuple[str, tuple[Client, ...]]]:
    """Each test, and with whom it is run."""
    for module, clients in MODULES.items():
        tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield node.name, clients


def everything() -> set[tuple[str, str]]:
    """What a run in which all goes well shows: label and test."""
    return {(client.label, name) for name, clients in rows() for client in clients}


def section(passed: Collection[tuple[str, str]]) -> str:
    able = dict(rows())
    labels = {client.label: client for client in CLIENTS}
    told = {name: name.removeprefix("test_").replace("_", " ") for name in able}

    def cell(label: str, name: str) -> str:
        if labels[label] not in able[name]:
            return NOT_TESTED
        return SHOWN if (label, name) in passed else NOT_SHOWN

    return "\n".join([HEAD, f"{', '.join(labels)}:", "", *all_yes_except([*labels], told, cell)])
