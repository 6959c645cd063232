"""docs/rules.md is the page that "rule N" means: what it names exists, and no trap of the model is missing. And what
docs/architecture.md names exists."""

from __future__ import annotations

import ast
import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from sexton.simulate.broken import BREAKS
from tests.model import traps
from tests.model.compact_once import COMPACT_ONCE
from tests.model.insync import traps as insync
from tests.project import PROJECT_DIR

PAGE: Final = (PROJECT_DIR / "docs" / "rules.md").read_text()
RULES: Final = {int(number) for number in re.findall(r'<a id="rule-(\d+)"></a>', PAGE)}
RULES_SECTION, TRAPS_SECTION = PAGE.split("## The rules")[1].split("## Cloud topics")[0].split("## The traps")
ROWS: Final = [line.split("|")[1:-1] for line in RULES_SECTION.splitlines() if re.match(r"\| \d", line)]


def test_every_rule_that_code_or_tests_cite_is_there() -> None:
    sources = chain((PROJECT_DIR / "src").rglob("*.py"), (PROJECT_DIR / "tests").rglob("*.py"))
    cited = {int(number) for path in sources for number in re.findall(r"\brules? (\d+)\b", path.read_text())}
    assert cited <= RULES == set(range(1, 13))


def test_every_rule_has_a_row_that_names_code_and_tests() -> None:
    assert [int(row[0]) for row in ROWS] == sorted(RULES)


@pytest.mark.parametrize(
    "named", sorted({path for row in ROWS for path in re.findall(r"`([\w/]+(?:\.py|/))`", row[1])})
)
def test_code_that_the_page_names_exists(named: str) -> None:
    assert (PROJECT_DIR / "src" / "sexton" / named).exists()


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::test_\w+)?)`", PAGE))))
def test_tests_that_the_page_names_exist(named: str) -> None:
    path, _, name = named.partition("::")
    tree = ast.parse((PROJECT_DIR / path).read_text())
    assert not name or any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)


def test_switches_that_the_page_names_exist() -> None:
    named = {switch for row in ROWS for switch in re.findall(r"`([\w-]+)`", row[3])}
    assert named <= set(BREAKS)


def test_arenas_that_the_page_names_exist_and_no_row_of_the_models_table_is_missing() -> None:
    named = set(re.findall(r'"([^"|]{20,})"', TRAPS_SECTION))
    known = {*traps.TRAPS, *traps.MORE, *COMPACT_ONCE, *insync.TRAPS}
    assert named <= known
    assert set(traps.TRAPS) - named <= {"records and aborted list from two states, however late index entries go"}


CLOUD_SECTION: Final = PAGE.split("## Cloud topics")[1]
CLOUD_RULES: Final = {int(number) for number in re.findall(r'<a id="rule-c(\d+)"></a>', CLOUD_SECTION)}


def test_every_rule_of_cloud_topics_that_is_cited_is_there() -> None:
    folders = ("src/sexton/adapters/metastore/cloud", "tests/adapters/metastore/cloud", "tests/model/cloud")
    sources = chain(*((PROJECT_DIR / folder).rglob("*.py") for folder in folders))
    texts = [path.read_text() for path in (*sources, PROJECT_DIR / "src/sexton/ports/cloud.py")]
    cited = {int(number) for text in texts for number in re.findall(r"\bC(\d+)\b", text)}
    assert {1, 2, 3, 5, 6, 10} <= cited <= CLOUD_RULES == set(range(1, 13))


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(adapters/[\w/]+(?:\.py|/))`", CLOUD_SECTION))))
def test_code_that_the_section_on_cloud_topics_names_exists(named: str) -> None:
    assert (PROJECT_DIR / "src" / "sexton" / named).exists()


ARCHITECTURE: Final = (PROJECT_DIR / "docs" / "architecture.md").read_text()


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`((?:\w+/)+\w+\.py)`", ARCHITECTURE))))
def test_files_on_the_walks_through_the_architecture_exist(named: str) -> None:
    assert (PROJECT_DIR / "src" / "sexton" / named).exists()


SHOWN: Final = re.findall(
    r"^(\w+)(?:/|\.py) ", ARCHITECTURE.split("## The tree")[1].split("## Five walks")[0], re.MULTILINE
)


def test_the_tree_of_the_architecture_is_the_tree() -> None:
    sources = PROJECT_DIR / "src" / "sexton"
    packages = {one.parent.name for one in sources.glob("*/__init__.py")}
    assert set(SHOWN) == packages | {one.stem for one in sources.glob("[a-z]*.py")}


def test_the_tree_of_the_architecture_is_in_the_order_of_the_layers() -> None:
    """It says that each package knows only those below it, which lint-imports checks by the layers."""
    contracts = tomllib.loads((PROJECT_DIR / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [each["layers"] for each in contracts if each["type"] == "layers"]
    assert [name.strip().removeprefix("sexton.") for layer in layers for name in layer.split("|")] == SHOWN


def test_decisions_that_the_page_links_to_exist() -> None:
    links = re.findall(r"\]\(([\w./-]+\.md)\)", PAGE)
    assert links
    assert all((PROJECT_DIR / "docs" / Path(link)).exists() for link in links)
