"""docs/transactions.md answers every question, and each answer names a test that exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.project import PROJECT_DIR

PAGE = PROJECT_DIR / "docs" / "transactions.md"
REFERENCE = re.compile(r"`?(tests/[\w/]+\.py)::(test_\w+)`?")

SEED_QUESTIONS = (
    "When will a consumer observe monotonically increasing offsets?",
    "When will a consumer skip over acknowledged records?",
    "Is this behavior different within a single call to poll, versus between two subsequent calls?",
    "Can a rebalance take effect in the middle of a transaction? How do rebalances affect transaction semantics?",
    "When will records sent by a producer to a single topic-partition have monotonically increasing offsets?",
    "When will those offsets be interleaved with writes from other producers?",
    "How do these behaviors differ within a transaction vs. between two subsequent transactions on the same client?",
    "When is G0 (write cycle) legal?",
    "When is G1a (aborted read) legal?",
    "When is G1b (intermediate read) legal?",
    "When is G1c (circular information flow) legal?",
    "What particular cycles are prohibited, if any? For example, are cycles composed entirely of write-read edges "
    "proscribed?",
    "When is fractured read legal? When can a transaction observe some, but not all, of another transaction's effects?",
    "Is it legal to read values written inside the current transaction?",
    "How are explicitly aborted transactions different from those which (e.g.) crash before committing?",
    "Are the values and offsets returned by poll() correct even if the transaction aborts?",
    "What offsets should a consumer poll after a transaction crashes?",
    "How should users navigate Kafka's maze of transaction errors?",
    "How should users handle errors that occur during the transaction abort process, or during rewind?",
    'Is the "committed position" the offset of the highest committed record, or the uncommitted offset one higher?',
    "Is it safe to let multiple transactional IDs process records from the same topic-partitions?",
    "Which offsets can auto-commit commit? When is data loss possible?",
    "How does auto-commit interact with transactions?",
)
"""Seed 5, section 6.2, in its order."""


def answers() -> dict[str, str]:
    """Each question of the page, and the text up to the next heading."""
    parts = re.split(r"^(#+) (.+)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    sections = zip(parts[0::3], parts[1::3], parts[2::3], strict=True)
    return {heading: text for level, heading, text in sections if level == "###"}


@cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("question", SEED_QUESTIONS)
def test_every_question_of_the_seed_is_asked(question: str) -> None:
    assert question in answers()


@pytest.mark.parametrize("question", answers())
def test_every_question_has_a_test(question: str) -> None:
    assert question.endswith("?")
    assert REFERENCE.search(answers()[question]), f"no test shows the answer to: {question}"


@pytest.mark.parametrize(("path", "name"), sorted(set(REFERENCE.findall(PAGE.read_text()))))
def test_every_test_that_the_page_names_exists(path: str, name: str) -> None:
    assert name in functions_of(PROJECT_DIR / path)
