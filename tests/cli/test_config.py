"""`sexton config` on real brokers."""

from __future__ import annotations

import json

import pytest

from sexton.cli.broker import UsageError
from sexton.client.errors import RefusedError
from tests.cli.conftest import Sexton, eventually

pytestmark = pytest.mark.cluster


def value(sexton: Sexton, name: str, *owner: object) -> str:
    return sexton("config", "get", name, *owner).stdout.strip()


def becomes(sexton: Sexton, expected: str, name: str, *owner: object) -> None:
    eventually(lambda: value(sexton, name, *owner) == expected)


def test_a_topics_setting_is_made_shown_and_taken_away(sexton: Sexton, topic: str) -> None:
    default = value(sexton, "segment.ms", "--topic", topic)
    sexton("config", "set", "--topic", topic, "segment.ms=7200000", "cleanup.policy=compact,delete")
    for _ in range(6):  # each command asks some broker
        becomes(sexton, "7200000", "segment.ms", "--topic", topic)
    shown = {each["name"]: each for each in json.loads(sexton("config", "list", "--topic", topic, "--json").stdout)}
    assert shown["cleanup.policy"]["value"] == "compact,delete"
    assert shown["segment.ms"]["source"] == "topic"
    sexton("config", "unset", "--topic", topic, "segment.ms")
    becomes(sexton, default, "segment.ms", "--topic", topic)


def test_the_clusters_default_holds_for_brokers_and_topics_that_say_nothing(sexton: Sexton, topic: str) -> None:
    sexton("config", "set", "--cluster", "log.retention.ms=123456789")
    try:
        becomes(sexton, "123456789", "retention.ms", "--topic", topic)
        becomes(sexton, "123456789", "log.retention.ms", "--broker", 2)
    finally:
        sexton("config", "unset", "--cluster", "log.retention.ms")
    eventually(lambda: value(sexton, "retention.ms", "--topic", topic) != "123456789")


def test_nonsense_is_refused_and_changes_nothing(sexton: Sexton, topic: str) -> None:
    before = sexton("config", "list", "--topic", topic, "--json").stdout
    for change in ("segment.ms=soon", "no.such.setting=1"):
        with pytest.raises(RefusedError):
            sexton("config", "set", "--topic", topic, change)
    assert sexton("config", "list", "--topic", topic, "--json").stdout == before


def test_whose_settings_must_be_said(sexton: Sexton) -> None:
    with pytest.raises(UsageError, match="whose"):
        sexton("config", "list")
    with pytest.raises(UsageError, match="whose"):
        sexton("config", "list", "--cluster", "--broker", 1)


def test_a_setting_that_does_not_exist_is_answered_with_those_that_do(sexton: Sexton, topic: str) -> None:
    with pytest.raises(UsageError) as refused:
        sexton("config", "get", "retention", "--topic", topic)
    assert "retention.ms" in refused.value.remedy
