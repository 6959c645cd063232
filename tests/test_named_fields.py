"""A record of more than five fields is built by their names: nobody can check twelve values by their places."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from tests.project import PROJECT_DIR

FIELDS_MAX = 5

MEASURED = {
    ("replication/fetcher.py", "FetchPartition"),  # one for each partition of each fetch of a follower: 2.7 times as
    ("replication/messages.py", "FetchPartition"),  # long by name
    ("replication/messages.py", "FetchRequest"),
    ("replication/messages.py", "PartitionData"),
    ("replication/session.py", "PartitionData"),
    ("simulate/snapshots.py", "Snapshot"),  # one for each replica that changed, after each turn
    ("simulate/snapshots.py", "Watermarks"),
}
"""Built so often that names cost something. Each is beside the class, or beside its reader or writer."""

Source = tuple[str, ast.Module]


@cache
def sources() -> list[Source]:
    folder = PROJECT_DIR / "src" / "sexton"
    return [(str(path.relative_to(folder)), ast.parse(path.read_text())) for path in sorted(folder.rglob("*.py"))]


def is_record(node: ast.ClassDef) -> bool:
    words = [ast.unparse(each) for each in (*node.bases, *node.decorator_list)]
    return any(word == "NamedTuple" or word.startswith("dataclass") for word in words)


def built_by_place(found: list[Source]) -> Iterator[tuple[str, str]]:
    classes = {
        path: {node.name: is_record(node) for node in tree.body if isinstance(node, ast.ClassDef)}
        for path, tree in found
    }
    records = {name for each in classes.values() for name, is_one in each.items() if is_one}
    for path, tree in found:
        ordinary = {name for name, is_one in _names_in(path, tree, classes).items() if not is_one}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and len(node.args) > FIELDS_MAX:
                name = ast.unparse(node.func).rpartition(".")[2]
                if name in records - ordinary:
                    yield path, name


def _names_in(path: str, tree: ast.Module, classes: dict[str, dict[str, bool]]) -> dict[str, bool]:
    """Classes that are defined or imported there, each with whether it is a record: two may have one name. Other
    people's are none of ours."""
    names = dict(classes[path])
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            module = node.module.removeprefix("sexton.").replace(".", "/") + ".py"
            known = (
                classes.get(module, {}) if node.module.startswith("sexton") else dict.fromkeys(_imported(node), False)
            )
            names |= {name: known[name] for name in _imported(node) if name in known}
    return names


def _imported(node: ast.ImportFrom) -> list[str]:
    return [alias.asname or alias.name for alias in node.names]


def test_records_of_more_than_five_fields_are_built_by_name() -> None:
    assert set(built_by_place(sources())) - MEASURED == set()


def test_exceptions_are_still_there() -> None:
    assert MEASURED - set(built_by_place(sources())) == set()


def test_a_record_that_is_built_by_place_is_found() -> None:
    text = "class Told(NamedTuple):\n    a: int\n\ntold = Told(1, 2, 3, 4, 5, 6)\nfine = Told(1, 2, 3, 4, 5)\n"
    assert list(built_by_place([("module.py", ast.parse(text))])) == [("module.py", "Told")]
