"""The metastore fails under cloud topics, with real brokers on a real S3: for less than a lease, for longer, and in
the middle of commits whose outcome then nobody knows."""

from __future__ import annotations

import time

import psycopg
import pytest

from tests.cloud.failures.conftest import SETTINGS, CloudPlace
from tests.cloud.failures.load import Load

pytestmark = pytest.mark.cluster

LEASE_S = float(SETTINGS["broker.lease.ms"]) / 1000


@pytest.mark.parametrize("share", [0.4, 1.5], ids=["shorter than a lease", "longer than a lease"])
def test_while_nothing_can_be_committed_nothing_is_acknowledged_and_then_all_goes_on(
    place: CloudPlace, share: float
) -> None:
    with Load(place.cluster, f"metastore-away-{share}") as load:
        with place.without_metastore():
            load.stands_still(share * LEASE_S)
        load.go_on()
    assert all(place.cluster.is_running(node_id) for node_id in place.cluster.node_ids)
    assert place.check().is_right


def test_a_commit_without_an_answer_is_asked_for_again_and_found_done(place: CloudPlace) -> None:
    """SQLite: brokers are killed after the commit (test_deaths). PostgreSQL: connections are cut again and again."""
    if place.postgres is None:
        with Load(place.cluster, "moments") as load:
            for _ in range(5):
                with place.without_metastore():
                    time.sleep(0.2)
                load.go_on(5)
        return
    address = place.cluster.metastore_url.replace("postgresql+psycopg://", "postgresql://")
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    with Load(place.cluster, "cut-off") as load, psycopg.connect(address, autocommit=True) as session:
        for _ in range(40):
            session.execute(f"{others} AND datname = current_database()")
            time.sleep(0.05)
        load.go_on()
    assert place.check().is_right
