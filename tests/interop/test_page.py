"""docs/clients.md says what the tests show, no more and no less."""

from __future__ import annotations

from tests.interop import page
from tests.interop.clients import CLIENTS
from tests.interop.features import FEATURES


def test_the_page_lists_exactly_the_tests_that_exist() -> None:
    how = "write it: pytest tests/interop tests/transactions --write-clients-doc"
    assert page.PATH.read_text() == page.render(page.everything()), how


def test_every_scenario_shows_a_feature_that_readers_are_told_about() -> None:
    for client in CLIENTS:
        assert set(client.features) <= FEATURES.keys(), client.label


def test_what_is_not_shown_is_not_claimed() -> None:
    shown = page.everything()
    missing = ("kcat 1.7.1", "codecs")
    assert "**no**" not in page.render(shown)
    assert page.render(shown - {missing}).count("**no**") == 1
