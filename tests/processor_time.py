"""What tests cost, where it counts: `-p tests.processor_time` prints the processor time of files and tests.

Two cores are shared by four test processes, so durations say how long a test waited for others; this says how long
others wait for it. A server counts where it was stopped, and what a session keeps running (Spark) where that ends.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Generator

import pytest

SHOWN_COUNT = 20
NAME = "processor_s"
_of_tests: defaultdict[str, float] = defaultdict(float)


def used_s() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        now_s = used_s()
        report.user_properties.append((NAME, now_s - getattr(item.config, NAME, 0.0)))
        setattr(item.config, NAME, now_s)
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    setattr(session.config, NAME, used_s())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == NAME and isinstance(value, float):
            _of_tests[report.nodeid] += value


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _of_tests:
        return
    of_files: defaultdict[str, float] = defaultdict(float)
    for test, seconds in _of_tests.items():
        of_files[test.partition("::")[0]] += seconds
    terminalreporter.section(f"processor time: {sum(of_files.values()):.0f} s")
    for counted in (of_files, _of_tests):
        for name, seconds in sorted(counted.items(), key=lambda one: -one[1])[:SHOWN_COUNT]:
            terminalreporter.write_line(f"{seconds:8.1f} s  {name}")
