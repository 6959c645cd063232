"""`test.json`: what a run was, beside its history. What the judge must know of it is a `Run`; the rest is for people.

{"format":1,"run":{"name":…,"workload":…,"logs":{"5":{"topic":"t2","partition":1,…}},…},
 "seed":…,"options":…,"versions":…,"settings":…,"started":…,"plan":…}
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, TypeVar

from sexton.errors import CorruptHistoryError, NotAHistoryError, UnsupportedFormatError
from sexton.history.op import Log, Run

NAME: Final = "test.json"
FORMAT: Final = 1

T = TypeVar("T", Log, Run)


@dataclass(frozen=True, slots=True)
class Description:
    run: Run
    more: Mapping[str, Any] = field(default_factory=dict)
    """Seed, options, versions of everything, settings of brokers and clients, start time, digest of the plan: as its
    writer spelled it."""


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of Sexton, of what it runs on, and of those packages that are installed."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for package in ("sexton", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write(directory: Path, description: Description) -> None:
    """Replaces the file at once: whoever reads it meanwhile sees the old or the new one."""
    document = {"format": FORMAT, "run": asdict(description.run), **description.more}
    temporary = directory / f"{NAME}.new"
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(temporary, directory / NAME)


def read(directory: Path) -> Description:
    path = directory / NAME
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotAHistoryError("it is missing", str(path), "Name the directory of a run") from None
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from None
    if not isinstance(document, dict):
        raise _unreadable(path, "it is no object")
    if document.get("format") != FORMAT:
        what = f"its format is {document.get('format')}, and this build reads {FORMAT}"
        raise UnsupportedFormatError(what, str(path), "Judge it with the version of Sexton that wrote it")
    try:
        run = _run(document.get("run"))
    except ValueError as error:
        raise _unreadable(path, str(error)) from None
    return Description(run, {name: it for name, it in document.items() if name not in ("format", "run")})


def _unreadable(path: Path, what: str) -> CorruptHistoryError:
    return CorruptHistoryError(what, str(path), "Judge an undamaged copy of the run")


def _run(document: Any) -> Run:
    run = dict(_object(document, "run"))
    logs = {log: _built(Log, dict(_object(it, "log"))) for log, it in _by_number(run.pop("logs", {})).items()}
    names = {name: _by_number(run.pop(name, {})) for name in ("log_names", "value_names")}
    if any(not isinstance(spelling, str) for spellings in names.values() for spelling in spellings.values()):
        raise ValueError("log_names or value_names has something that is no string")
    return _built(Run, {**run, "logs": logs, **names})


def _built(kind: type[T], values: dict[str, Any]) -> T:
    """Checks each value against the type that the field is annotated with: plain types, all of them."""
    known = {it.name: str(it.type) for it in fields(kind)}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"{kind.__name__} has no field {name}")
        if known[name] in ("str", "int", "bool") and type(value).__name__ != known[name]:
            raise ValueError(f"{name} is no {known[name]}: {json.dumps(value)[:60]}")
    if kind is Log:
        values["eos_input"] = _numbers(values.get("eos_input", []))
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _numbers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(it) is not int for it in value):
        raise ValueError("eos_input is no list of logs")
    return tuple(value)


def _by_number(value: Any) -> dict[int, Any]:
    return {int(number): it for number, it in _object(value, "what is by number").items()}


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no object: {json.dumps(value)[:60]}")
    return value
