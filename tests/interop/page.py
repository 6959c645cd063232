"""docs/clients.md: which client, in which version, was seen to do what. Written by
`pytest tests/interop tests/transactions --write-clients-doc`, and checked by every other run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import pytest

from tests import storage
from tests.interop import suites
from tests.interop.clients import CLIENTS
from tests.interop.exceptions import NOT_SHOWN, NOT_TESTED, SHOWN, all_yes_except
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
tests/interop --against kafka`). A version says since when the client itself can do it; "not tested", that no test does
it with this client, often because there is nothing of the kind in it.

This page is written by the tests, in one run: `pytest tests/interop tests/transactions --write-clients-doc`.
"""

SECTIONS: Final = {"": "Clients", "spark_": "Spark", "tool_": "Java tools"}
"""By how the names of their features begin."""

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
    for prefix, title in SECTIONS.items():
        parts.append(_section(title, {name: FEATURES[name] for name in FEATURES if _prefix(name) == prefix}, passed))
    parts.append(matrix.section(passed))
    parts.append(frameworks.section(passed))
    parts.append(more.section(passed))
    parts.append(suites.section())
    parts.append(storage.section())
    return "\n".join(parts)


def everything() -> set[tuple[str, str]]:
    """What a run in which all goes well shows."""
    features = {(client.label, feature) for client in CLIENTS for feature in client.features}
    return features | matrix.everything() | frameworks.everything() | more.everything()


def _prefix(feature: str) -> str:
    return next((prefix for prefix in SECTIONS if prefix and feature.startswith(prefix)), "")


def _section(title: str, features: Mapping[str, str], passed: Collection[tuple[str, str]]) -> str:
    clients = {client.label: client for client in CLIENTS if features.keys() & client.features}

    def cell(label: str, feature: str) -> str:
        client = clients[label]
        if feature in client.cannot:
            return client.cannot[feature]
        if feature not in client.features:
            return NOT_TESTED
        return SHOWN if (label, feature) in passed else NOT_SHOWN

    return "\n".join([f"## {title}", "", f"{', '.join(clients)}:", "", *all_yes_except([*clients], features, cell)])
