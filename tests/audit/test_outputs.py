"""What an audit writes: the page, the plan, the Parquet file, the JSON, and keys to look at again."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sexton.audit import only
from sexton.audit.export import write
from sexton.audit.judge import Verdict
from sexton.audit.page import page
from sexton.audit.plan import plan
from sexton.audit.report import Report, as_dict
from sexton.cli.audit_output import check_places
from sexton.cli.broker import UsageError
from sexton.errors import NotALogError
from tests.audit.replicas import On, audited, brokers
from tests.logs import data, in_transaction

FILLER = data((b"filler", b"x"), at=8)
CLEANED = On([FILLER], clean=8)
CAME_BACK = On([data((b"user", b"<alice>"), at=0), FILLER])
STUCK = On([in_transaction((b"price", b"10"), at=1, pid=7), FILLER])


def tombstone(parent: Path) -> Report:
    return audited(brokers(parent, CLEANED, CLEANED, CAME_BACK))


class Tags(HTMLParser):
    """Checks that what is opened is closed, and collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href") and not value.startswith("#")]  # type: ignore[union-attr]
        if tag not in ("meta", "br", "rect", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "circle"):
            assert self.open.pop() == tag


@pytest.mark.parametrize("shows_values", [False, True])
def test_the_page_is_whole_loads_nothing_and_shows_values_only_when_asked(tmp_path: Path, shows_values: bool) -> None:
    text = page(tombstone(tmp_path), shows_values=shows_values)
    tags = Tags()
    tags.feed(text)
    assert (tags.open, tags.loads) == ([], [])
    assert "orders-0" in text
    assert "the tombstone is gone" in text
    assert ("&lt;alice&gt;" in text) is shows_values
    assert "<alice>" not in text


def test_json_has_keys_and_values_only_when_asked(tmp_path: Path) -> None:
    report = tombstone(tmp_path)
    (hidden,) = as_dict(report)["partitions"][0]["differences"]
    (shown,) = as_dict(report, shows_values=True)["partitions"][0]["differences"]
    assert "alice" not in json.dumps(as_dict(report))
    assert (hidden["key"], shown["key"]) == (None, {"utf8": "user"})
    assert hidden["shown"] == {
        "broker 1": None,
        "broker 2": None,
        "broker 3": {
            "offset": 0,
            "tombstone": False,
            "timestamp_ms": CAME_BACK.batches[0].records[0].timestamp_ms,
            "leader_epoch": 0,
            "producer_id": -1,
            "producer_epoch": -1,
            "sequence": -1,
            "transactional": False,
        },
    }
    assert shown["shown"]["broker 3"]["value"] == {"utf8": "<alice>"}
    assert (hidden["label"], hidden["sure"], hidden["wrong"]) == ("tombstone", True, ["broker 3"])


def test_json_lists_no_more_differences_than_asked_for(tmp_path: Path) -> None:
    lost = [data((b"key %d" % number, b"v"), at=number) for number in range(5)]
    report = audited(brokers(tmp_path, On([*lost, FILLER]), On([*lost, FILLER]), On([FILLER])))
    told = as_dict(report, 2)["partitions"][0]
    assert (len(told["differences"]), told["keys_differing"]) == (2, 5)


def test_keys_that_are_not_looked_at_are_counted(tmp_path: Path) -> None:
    lost = [data((b"key %d" % number, b"v"), at=number) for number in range(5)]
    report = audited(brokers(tmp_path, On([*lost, FILLER]), On([*lost, FILLER]), On([FILLER])), confirm=2)
    (each,) = report.partitions
    assert (len(each.cases), each.unexplained_count, each.verdict) == (2, 3, Verdict.DIVERGED)


@pytest.mark.parametrize("shows_values", [False, True])
def test_parquet_has_a_row_for_each_key(tmp_path: Path, shows_values: bool) -> None:
    path = tmp_path / "differing.parquet"
    write(tombstone(tmp_path), path, shows_values=shows_values)
    (row,) = pq.read_table(path).to_pylist()
    assert (row["topic"], row["partition"], row["label"], row["wrong"]) == ("orders", 0, "tombstone", [3])
    assert row["key"] == (b"user" if shows_values else None)
    assert row["shown"][0]["value"] == (b"<alice>" if shows_values else None)


def test_the_plan_moves_a_stopped_brokers_copy_aside(tmp_path: Path) -> None:
    text = plan(tombstone(tmp_path), None)
    place = tmp_path / "broker-3"
    assert f"mv {place}/orders-0 {place}-aside/" in text
    assert f"{tmp_path}/broker-1/" not in text


def test_the_commands_of_the_plan_lead_to_agreement(tmp_path: Path) -> None:
    """Of a broker that is stopped; it would copy the partition anew when it starts."""
    dirs = brokers(tmp_path, CLEANED, CLEANED, CAME_BACK)
    for block in re.findall(r"```sh\n(mkdir.*?)```", plan(audited(dirs), None), re.DOTALL):
        subprocess.run(["sh", "-ec", block], check=True)
    (report,) = audited(dirs).partitions
    assert (report.verdict, len(report.standings)) == (Verdict.AGREE, 2)
    assert (tmp_path / "broker-3-aside" / "orders-0").is_dir()


def test_the_plan_of_agreement_is_that_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert "nothing to do" in plan(audited(brokers(tmp_path, CLEANED, CLEANED)), None)


def test_the_plan_rebuilds_nothing_where_nobody_can_be_copied_from(tmp_path: Path) -> None:
    report = tombstone(tmp_path)
    (each,) = report.partitions
    standings = {
        number: replace(standing, replica=replace(standing.replica, is_in_sync=standing.label == "broker 3"))
        for number, standing in each.standings.items()
    }
    text = plan(replace(report, partitions=(replace(each, standings=standings),)), None)
    assert "No replica that is right can be copied from" in text
    assert "mv " not in text


def test_the_plan_tells_of_the_stuck_transaction(tmp_path: Path) -> None:
    text = plan(audited(brokers(tmp_path, CLEANED, CLEANED, STUCK)), "host:9092")
    assert "--bootstrap-server host:9092 abort --topic orders --partition 0 --start-offset 1" in text


# ---- Looking again. ----


def test_only_the_keys_of_a_report_are_looked_at_again(tmp_path: Path) -> None:
    lost = data((b"other", b"1"), at=4)
    path = tmp_path / "report.json"
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    path.write_text(json.dumps(as_dict(tombstone(first))))
    dirs = brokers(second, On([lost, FILLER], clean=4), On([lost, FILLER], clean=4), CAME_BACK)
    everything = audited(dirs).partitions[0]
    again = audited(dirs, only.read(path)).partitions[0]
    assert {case.key.key for case in everything.cases} == {b"user", b"other"}
    assert {case.key.key for case in again.cases} == {b"user"}


def test_a_report_that_tells_of_few_keys_still_finds_all_of_them_again(tmp_path: Path) -> None:
    lost = [data((b"key %d" % number, b"v"), at=number) for number in range(5)]
    dirs = brokers(tmp_path, On([*lost, FILLER]), On([*lost, FILLER]), On([FILLER]))
    path = tmp_path / "report.json"
    path.write_text(json.dumps(as_dict(audited(dirs), 1)))
    assert len(audited(dirs, only.read(path)).partitions[0].cases) == 5


def test_after_the_repair_the_same_keys_agree(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(as_dict(tombstone(tmp_path))))
    repaired = tmp_path / "repaired"
    repaired.mkdir()
    (report,) = audited(brokers(repaired, CLEANED, CLEANED, CLEANED), only.read(path)).partitions
    assert (report.verdict, report.cases) == (Verdict.AGREE, ())


def test_keys_may_be_listed_one_a_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("user\n0x00ff\n\n0xno\n")
    found = only.read(path)
    assert found.firsts == only.Only(found.hash_key, _firsts(found, b"user", b"\x00\xff", b"0xno")).firsts


def _firsts(found: only.Only, *keys: bytes) -> frozenset[int]:
    from sexton.records.keyhash import hash_key

    return frozenset(hash_key(key, found.hash_key)[0] for key in keys)


def test_other_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"hash_key": 3}')
    with pytest.raises(NotALogError, match="no report"):
        only.read(path)


@pytest.mark.parametrize("place", ["nowhere/plan.txt", "."])
def test_where_nothing_can_be_written_is_told_before_anything_is_read(tmp_path: Path, place: str) -> None:
    with pytest.raises(UsageError):
        check_places(None, tmp_path / place)
    check_places(None, tmp_path / "plan.txt")
