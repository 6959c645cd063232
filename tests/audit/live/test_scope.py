"""Which topics an audit looks at, by what it is asked for."""

from __future__ import annotations

from sexton.audit.live.discovery import Scope
from sexton.client.metadata import TopicInfo


def topic(name: str, *, is_internal: bool = False) -> TopicInfo:
    return TopicInfo(name, None, is_internal, {})


def test_without_a_pattern_internal_topics_are_left_alone() -> None:
    matches = Scope().matcher()
    assert matches(topic("orders"))
    assert not matches(topic("__consumer_offsets", is_internal=True))


def test_a_pattern_is_of_whole_names_and_may_name_internal_topics() -> None:
    matches = Scope("orders|__consumer.*").matcher()
    assert [matches(topic(name)) for name in ("orders", "orders2", "my-orders")] == [True, False, False]
    assert matches(topic("__consumer_offsets", is_internal=True))


def test_topics_that_are_named_are_asked_for_by_name() -> None:
    """A cluster does not list those that we may not see."""
    assert Scope("orders|users.v1").names == ("orders", "users.v1")
    assert Scope("orders.*").names == ()
    assert Scope().names == ()
