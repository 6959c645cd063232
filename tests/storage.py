"""Tests of clients on cloud topics: `--storage cloud` gives the brokers under test a real S3 (versitygw), and makes
every topic that does not say otherwise a cloud topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from sexton.harness.cloud_store import CloudStore

CLOUD: Final = "cloud"
NOT_ON_CLOUD: Final[dict[str, str]] = {
    "tool_dirs": "there are no replicas: the leader alone tells the size, of the store",
    "tool_dump": "there are no files of replicas: an object's runs are read with `sexton log dump`",
}
"""What cannot be tried there: features, tests or files, each with the reason. docs/clients.md tells readers."""


def is_cloud(config: pytest.Config) -> bool:
    return str(config.getoption("--storage")) == CLOUD


@contextmanager
def store_for(config: pytest.Config, directory: Path) -> Iterator[CloudStore | None]:
    """For one cluster. None, where topics are local."""
    if not is_cloud(config):
        yield None
        return
    with CloudStore(directory) as store:
        yield store


def exception_of(item: pytest.Item) -> str | None:
    """Why this cannot be tried on cloud topics; None if it can."""
    feature = getattr(getattr(item, "callspec", None), "params", {}).get("feature")
    names = (feature, getattr(item, "originalname", item.name), item.path.name)
    return next((NOT_ON_CLOUD[name] for name in names if name in NOT_ON_CLOUD), None)


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not is_cloud(config):
        return
    left_out = [item for item in items if exception_of(item) is not None]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def section() -> str:
    rows = [f"| `{name}` | {reason} |" for name, reason in NOT_ON_CLOUD.items()]
    lines = [
        "## On cloud topics",
        "",
        "The same tests run with `default.storage.mode=cloud` on a real S3: `make clients-cloud`. All yes, except:",
        "",
        "| | |",
        "|---|---|",
        *rows,
        "",
    ]
    return "\n".join(lines)
