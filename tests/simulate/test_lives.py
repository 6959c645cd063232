"""Topics that are made again: for each promise the smallest history that breaks it, and one that looks like it."""

from __future__ import annotations

import uuid

import pytest

from sexton.simulate.errors import SimulationFailure
from sexton.simulate.life_groups import PlaceHistory
from sexton.simulate.lives import ANY_LIFE, LifeHistory

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


def identity(life: uuid.UUID | str, number: int = 1) -> bytes:
    return f"{life}:{number}:".encode()


def test_what_was_written_to_a_deleted_topic_is_never_seen_in_the_next_of_that_name() -> None:
    history = LifeHistory("t")
    history.saw((OLD, 0), 0, identity(OLD))
    history.saw((NEW, 0), 0, identity(NEW))
    with pytest.raises(SimulationFailure, match="another life"):
        history.saw((NEW, 0), 1, identity(OLD))


def test_what_was_written_by_name_is_seen_in_one_life_whichever_that_is() -> None:
    history = LifeHistory("t")
    history.saw((OLD, 0), 0, identity(ANY_LIFE))
    history.saw((OLD, 0), 0, identity(ANY_LIFE))
    history.saw((NEW, 0), 0, identity(ANY_LIFE, 2))
    with pytest.raises(SimulationFailure, match="in another life as well"):
        history.saw((NEW, 0), 1, identity(ANY_LIFE))


def test_an_offset_of_a_life_has_one_value() -> None:
    history = LifeHistory("t")
    history.saw((OLD, 0), 0, identity(OLD, 1))
    history.saw((OLD, 1), 0, identity(OLD, 2))
    with pytest.raises(SimulationFailure, match="read before"):
        history.saw((OLD, 0), 0, identity(OLD, 2))


def test_what_was_refused_is_never_seen() -> None:
    history = LifeHistory("t", failed={identity(OLD)})
    with pytest.raises(SimulationFailure, match="rule 9"):
        history.saw((OLD, 0), 0, identity(OLD))


def test_what_a_life_that_exists_has_acknowledged_is_there() -> None:
    history = LifeHistory("t", acknowledged={(NEW, 0): {0: identity(NEW, 1), 1: identity(NEW, 2)}})
    history.check((NEW, 0), {0: identity(NEW, 1), 1: identity(NEW, 2), 2: identity(NEW, 3)})
    with pytest.raises(SimulationFailure, match="rule 1"):
        history.check((NEW, 0), {0: identity(NEW, 1)})
    with pytest.raises(SimulationFailure, match="rule 1"):
        history.check((NEW, 0), {0: identity(NEW, 2), 1: identity(NEW, 1)})


def test_what_a_life_that_exists_has_shown_is_there() -> None:
    history = LifeHistory("t")
    history.saw((NEW, 0), 0, identity(NEW))
    with pytest.raises(SimulationFailure, match="was read"):
        history.check((NEW, 0), {})


def test_nothing_is_promised_of_a_life_that_is_over() -> None:
    history = LifeHistory("t", acknowledged={(OLD, 0): {0: identity(OLD)}})
    history.check((NEW, 0), {})


def test_a_group_is_nowhere_in_a_life_to_which_it_has_not_committed() -> None:
    history = PlaceHistory("t", {(OLD, 0): {5}, (NEW, 0): {6}})
    history.told((NEW, 0), 6, str(NEW))
    history.told((NEW, 0), -1, "")
    with pytest.raises(SimulationFailure, match="it was there in life"):
        history.told((NEW, 0), 5, str(OLD))
    with pytest.raises(SimulationFailure, match="never said so"):
        history.told((NEW, 0), 5, str(NEW))
