from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sexton.errors import CorruptHistoryError, NotAHistoryError, UnsupportedFormatError
from sexton.history import run
from sexton.history.op import Log, Run
from sexton.history.run import Description, versions

numbers = st.integers(-5, 1 << 40)
logs = st.builds(
    *(Log, st.text(), numbers, st.booleans(), st.booleans(), numbers, st.lists(numbers, max_size=2).map(tuple))
)
spellings = st.dictionaries(numbers, st.text())
runs = st.builds(
    Run,
    name=st.text(),
    workload=st.text(),
    logs=st.dictionaries(numbers, logs, max_size=3),
    is_read_committed=st.booleans(),
    uses_subscribe=st.booleans(),
    has_acks_all=st.booleans(),
    clock_skew_ms=numbers,
    log_names=spellings,
    value_names=spellings,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs)
def test_any_run_survives(tmp_path: Path, any_run: Run) -> None:
    description = Description(any_run, {"seed": 7, "versions": versions(["numpy"]), "options": {"time": 60}})
    run.write(tmp_path, description)
    assert run.read(tmp_path) == description


def test_versions_name_what_is_installed_and_leave_out_the_rest() -> None:
    found = versions(["numpy", "no-such-package"])
    assert {"python", "system", "sexton", "numpy"} == found.keys()


def test_a_run_without_its_description_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotAHistoryError, match=r"test\.json: it is missing"):
        run.read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": None}, "run is no object: null"),
        ({"run": {"name": 5}}, "name is no str: 5"),
        ({"run": {"uses_subscribe": 1}}, "uses_subscribe is no bool: 1"),
        ({"run": {"clock_skew_ms": True}}, "clock_skew_ms is no int: true"),
        ({"run": {"new": 1}}, "Run has no field new"),
        ({"run": {"logs": {"x": {}}}}, "invalid literal"),
        ({"run": {"logs": {"5": {"topic": "t"}}}}, "partition"),
        ({"run": {"logs": {"5": {"topic": "t", "partition": 0, "eos_input": 1}}}}, "eos_input is no list of logs"),
        ({"run": {"log_names": {"-2": 5}}}, "something that is no string"),
    ],
)
def test_a_description_that_cannot_be_is_an_error(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    (tmp_path / "test.json").write_text(json.dumps({"format": 1, "run": {}} | changes))
    with pytest.raises(CorruptHistoryError, match=reason):
        run.read(tmp_path)


def test_a_description_is_cut_short_at_any_byte(tmp_path: Path) -> None:
    run.write(tmp_path, Description(Run("a", logs={5: Log("t", 1)})))
    whole = (tmp_path / "test.json").read_bytes()
    for size in range(len(whole) - 2):
        (tmp_path / "test.json").write_bytes(whole[:size])
        with pytest.raises(CorruptHistoryError):
            run.read(tmp_path)


def test_another_format_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "test.json").write_text('{"format":2}')
    with pytest.raises(UnsupportedFormatError, match="its format is 2, and this build reads 1"):
        run.read(tmp_path)
