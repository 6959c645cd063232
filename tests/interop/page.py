"""docs/clients.md: which client, in which version, was seen to do what. Written by
`pytest tests/interop tests/transactions --write-clients-doc`, and checked by every other run."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby
from typing import Final

import pytest

from tests.interop import suites
from tests.interop.clients import CLIENTS, Client
from tests.interop.features import FEATURES
from tests.interop.frameworks import versions as frameworks
from tests.interop.more import programs as more
from tests.project import PROJECT_DIR
from tests.transactions import matrix

PATH: Final = PROJECT_DIR / "docs" / "clients.md"

HEAD: Final = """\
# Clients

What each client does with a cluster of three Sexton brokers, in the newest version and in older ones that people still
run. Every "yes" is a test in `tests/interop/` or `tests/transactions/`; the same tests pass with Apache Kafka (`pytest
tests/interop --against kafka`). A cell that names a version says since when the client itself can do it; an empty one,
that there is nothing of the kind in that client.

This page is written by the tests, in one run: `pytest tests/interop tests/transactions --write-clients-doc`.
"""

SHOWN, NOT_SHOWN, NONE = "yes", "**no**", ""


PASSED: Final = pytest.StashKey[set[tuple[str, str]]]()
"""What was shown in this run: the client's label, and the feature, or the test if it is not about one."""


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Keeps what a test of a client has shown."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if report.when == "call" and report.passed and "client" in parameters:
        shown = parameters.get("feature", getattr(item, "originalname", item.name))
        item.config.stash.setdefault(PASSED, set()).add((parameters["client"].label, shown))


def write(config: pytest.Config) -> None:
    passed = config.stash.setdefault(PASSED, set())
    PATH.write_text(render(passed))


def render(passed: Collection[tuple[str, str]]) -> str:
    """The page, from the labels and features, or tests, that were shown."""
    parts = [HEAD]
    for name, versions in groupby(CLIENTS, key=lambda client: client.name):
        parts.append(_section(name, list(versions), passed))
    parts.append(matrix.section(passed))
    parts.append(frameworks.section(passed))
    parts.append(more.section(passed))
    parts.append(suites.section())
    return "\n".join(parts)


def everything() -> set[tuple[str, str]]:
    """What a run in which all goes well shows."""
    features = {(client.label, feature) for client in CLIENTS for feature in client.features}
    return features | matrix.everything() | frameworks.everything() | more.everything()


def _section(name: str, versions: list[Client], passed: Collection[tuple[str, str]]) -> str:
    rows = [feature for feature in FEATURES if any(feature in client.features for client in versions)]
    lines = [
        f"## {name}",
        "",
        f"| | {' | '.join(client.version for client in versions)} |",
        "|---" * (1 + len(versions)) + "|",
        *(f"| {FEATURES[row]} | {' | '.join(_cell(client, row, passed) for client in versions)} |" for row in rows),
        "",
    ]
    return "\n".join(lines)


def _cell(client: Client, feature: str, passed: Collection[tuple[str, str]]) -> str:
    if feature in client.cannot:
        return client.cannot[feature]
    if feature not in client.features:
        return NONE
    return SHOWN if (client.label, feature) in passed else NOT_SHOWN
