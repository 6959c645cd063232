"""Options of the soak under load, for `pytest tests/audit/live/...`; a run of everything takes the defaults."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

TIMEOUT_S = 600
AUDIT_TIMEOUT_S = 60
"""An audit under load takes about ten seconds on two cores."""


@dataclass(frozen=True, slots=True)
class Asked:
    audits_count: int = 20
    writes_per_s: int = 5_000
    seconds: int = 60
    """How long the load lasts, if the audits are done sooner."""


DEFAULTS = Asked()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sexton")
    group.addoption("--audits", type=int, default=DEFAULTS.audits_count, help="How many audits under load.")
    group.addoption("--writes", type=int, default=DEFAULTS.writes_per_s, help="Writes a second meanwhile.")
    group.addoption("--seconds", type=int, default=DEFAULTS.seconds, help="How long at least.")


def asked_of(config: pytest.Config) -> Asked:
    # A conftest below the tests' root is read too late to have its options parsed, unless it was asked for by path.
    return Asked(
        config.getoption("--audits", DEFAULTS.audits_count),
        config.getoption("--writes", DEFAULTS.writes_per_s),
        config.getoption("--seconds", DEFAULTS.seconds),
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The more audits, the longer it may take."""
    wanted = asked_of(config)
    for item in items:
        if "asked" in getattr(item, "fixturenames", ()):
            limit_s = TIMEOUT_S + wanted.seconds + wanted.audits_count * AUDIT_TIMEOUT_S
            item.add_marker(pytest.mark.timeout(limit_s))


@pytest.fixture(scope="session")
def asked(pytestconfig: pytest.Config) -> Asked:
    return asked_of(pytestconfig)
