"""A run again, from what its `test.json` says: the same seed makes the same choices and the same schedule of faults.

Real processes stay free, so this repeats the plan and not the run: what a race decided may come out otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from sexton.checker.allowed import Model
from sexton.checker.view import Options
from sexton.errors import NotAHistoryError
from sexton.harness.systems import NODES
from sexton.history import run as description
from sexton.history.run import Description
from sexton.verify.plan import Plan
from sexton.verify.run import Wanted
from sexton.verify.systems import LOCAL, SQLITE
from sexton.verify.workloads.known import WORKLOADS, Asked

T = TypeVar("T", Plan, Asked)


def read(directory: Path, target: Path) -> tuple[Wanted, Plan]:
    """What was run in `directory`, to be run in `target`."""
    found = description.read(directory)
    more = found.more
    options = more.get("options")
    if not isinstance(options, dict) or "seed" not in options or found.run.workload not in WORKLOADS:
        where = str(directory / description.NAME)
        raise NotAHistoryError("it does not say how it was run", where, "Name a run that `verify run` wrote")
    wanted = Wanted(
        system=str(more.get("system")),
        is_existing=bool(more.get("existing")),
        allows_admin=bool(more.get("allows-admin")),
        command_config=Path(more["command-config"]) if more.get("command-config") else None,
        workload=found.run.workload,
        asked=_made(Asked, options),
        directory=target,
        nodes=int(more.get("nodes", NODES)),
        metastore=str(more.get("metastore", SQLITE)),
        controllers=int(more.get("controllers", 0)),
        storage=str(more.get("storage", LOCAL)),
        judges_corruption=bool(more.get("judges-corruption")),
        model=Model(more.get("model", Model.KAFKA)),
        ignored=tuple(more.get("ignored", ())),
        patience_ms=int(more.get("patience-ms", Options().patience_ms)),
        lie=str(more.get("lie", "")),
    )
    return wanted, _made(Plan, options)


def _made(kind: type[T], options: Mapping[str, Any]) -> T:
    """JSON has lists where there were tuples. What this version does not know is left out."""
    names = {each.name for each in fields(kind)}
    known: dict[str, Any] = {
        name: tuple(it) if isinstance(it, list) else it for name, it in options.items() if name in names
    }
    return kind(**known)


def write(directory: Path, plan: Plan) -> Path:
    """A description beside a run's own, that says how to run it with this plan: to be replayed as the run is."""
    found = description.read(directory)
    target = directory.with_name(f"{directory.name}-smallest")
    target.mkdir(exist_ok=True)
    options = {**found.more["options"], **asdict(plan)}
    description.write(target, Description(found.run, {**found.more, "options": options}))
    return target


def places(directory: Path) -> Path:
    """Where the next replay of a run goes: beside it."""
    number = 1
    while (target := directory.with_name(f"{directory.name}-replay-{number}")).exists():
        number += 1
    return target
