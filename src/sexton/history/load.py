"""Whatever a person names as a history: the directory of a run, its `history.jsonl` or `ops.parquet`, or a
`history.edn` of Jepsen's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sexton.errors import EnvironmentFailure, NotAHistoryError
from sexton.history import flat, flatten, lines, run
from sexton.history.edn import FIRST_NAMED
from sexton.history.flat import FlatHistory
from sexton.history.merge import merge_pieces, pieces_in
from sexton.history.op import F, Run
from sexton.history.order import Notes, Order

LINES: Final = "history.jsonl"
EDN: Final = "history.edn"

_REMEDY: Final = f"Name the directory of a run, its {LINES} or ops.parquet, or a {EDN} of Jepsen's"


@dataclass(frozen=True, slots=True)
class Loaded:
    run: Run
    """From `test.json`, if there is one; otherwise what the history itself tells."""
    history: FlatHistory
    """Checked, with pairs."""
    notes: Notes


def load(path: Path) -> Loaded:
    """Raises CorruptHistoryError, NotAHistoryError, EnvironmentFailure."""
    try:
        found = history_at(path)
        order = Order(str(found), is_imported=found.suffix == ".edn")
        history = _read(found, order)
        return Loaded(run_of(found, history), history, order.notes)
    except OSError as error:
        raise EnvironmentFailure(f"it cannot be read: {error.strerror}", str(path)) from error


def history_at(path: Path) -> Path:
    """In the directory of a run, `history.jsonl`: it is there even if the run was killed, or its pieces are."""
    if path.is_dir() and not (path / LINES).exists() and pieces_in(path):
        merge_pieces(path, path / LINES)
    inside = (
        (path / LINES, path / EDN, path / "ops.parquet") if path.is_dir() and path.suffix != ".parquet" else (path,)
    )
    found = next((it for it in inside if it.exists()), None)
    if found is None:
        raise NotAHistoryError("there is no history", str(path), _REMEDY)
    return found


def _read(path: Path, order: Order) -> FlatHistory:
    if path.suffix == ".parquet":
        history = flat.read_parquet(path.parent)
        if not len(history.ops):
            raise lines.empty(order.name)
        flat.take_notes(history, order.notes)
        return history
    if path.suffix not in (".jsonl", ".edn"):
        raise NotAHistoryError("its name does not tell what it is", str(path), _REMEDY)
    with path.open("rb") as file:
        return (flatten.read_edn if path.suffix == ".edn" else flatten.read_lines)(file, order)


def run_of(path: Path, history: FlatHistory) -> Run:
    has_description = (path.parent / run.NAME).exists() and path.suffix != ".edn"
    known = run.read(path.parent).run if has_description else Run(name=path.parent.name, uses_subscribe=_uses(history))
    log_names = {FIRST_NAMED - row: name for row, name in enumerate(history.log_names)} or known.log_names
    value_names = {FIRST_NAMED - row: name for row, name in enumerate(history.value_names)} or known.value_names
    return replace(known, log_names=log_names, value_names=value_names)


def _uses(history: FlatHistory) -> bool:
    return F.SUBSCRIBE in {history.strings[number] for number in set(history.ops["f"].tolist())}
