"""Brokers are killed and paused under fifty producers: every transaction is all there or not at all, and nothing hangs.

`--soak` goes on for two minutes.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sexton.verify.clients.base import Place
from tests.interop.clients import Client
from tests.project import PROJECT_DIR
from tests.transactions.application import ABORTED, COMMITTED, UNKNOWN
from tests.transactions.clients import DRIVERS, newest, process_environment
from tests.transactions.reading import places_of, settled
from tests.transactions.storm import AFTERWARDS_S
from tests.transactions.under_test import UnderTest

pytestmark = pytest.mark.cluster

SEED = 1
TIMEOUT_MS = 10_000
FAILOVER_S = 60
"""What a busy machine may need until another broker leads, and clients have noticed. It is seconds on a quiet one."""

PRODUCERS = {"confluent-kafka": 15, "aiokafka": 15, "Java client": 10, "franz-go": 10}
STATE_TOPIC = "__transaction_state"


@dataclass
class Told:
    """What the producers said."""

    transactions: list[dict[str, Any]] = field(default_factory=list)
    gave_up: list[str] = field(default_factory=list)

    def take(self, text: str) -> None:
        for line in text.splitlines():
            told = json.loads(line)
            if "gave_up" in told:
                self.gave_up.append(f"{told['gave_up']}: {told['why']}")
            else:
                self.transactions.append(told)


def start_storm(
    client: Client, cluster: UnderTest, places: list[Place], seconds: float, log: Path
) -> subprocess.Popen[str]:
    asked = {
        "driver": DRIVERS[client.name],
        "bootstrap": cluster.bootstrap,
        "name": cluster.name(DRIVERS[client.name]),
        "count": PRODUCERS[client.name],
        "places": places,
        "seconds": seconds,
        "seed": SEED,
        "timeout_ms": TIMEOUT_MS,
        "settings": {},
    }
    with log.open("ab") as errors:
        return subprocess.Popen(
            [client.python(), "-m", "tests.transactions.storm", json.dumps(asked)],
            cwd=PROJECT_DIR,
            env=process_environment(client),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def fail_coordinators(cluster: UnderTest, seconds: float, rng: random.Random) -> list[str]:
    """Kills and pauses, in turn, a broker that coordinates transactions at that moment."""
    running = cluster.running
    assert running is not None
    done: list[str] = []
    end_s = time.monotonic() + seconds
    kinds = ["kill", "pause"]
    rng.shuffle(kinds)
    while time.monotonic() < end_s:
        kind = kinds[len(done) % 2]
        victim = rng.choice([leader for leader in cluster.leaders(STATE_TOPIC).values() if leader > 0])
        if kind == "kill":
            running.kill_node(victim)
        else:
            running.pause_node(victim)
        time.sleep(rng.uniform(2, 6))
        if kind == "kill":
            running.start_node(victim)
        else:
            running.resume_node(victim)
        done.append(f"{kind} {victim}")
        time.sleep(rng.uniform(1, 3))
    running.wait_ready()
    return done


@pytest.mark.timeout(900)
def test_every_transaction_is_all_there_or_not_at_all_though_coordinators_are_killed_and_paused(
    mortal: UnderTest, kill_seconds: int, tmp_path: Path
) -> None:
    topics = [mortal.topic("storm", 4) for _ in range(3)]
    places = places_of(topics, 4)
    clients = [newest(name) for name in PRODUCERS]
    storms = [start_storm(each, mortal, places, kill_seconds, tmp_path / f"{each.name}.log") for each in clients]
    try:
        time.sleep(3)  # JVMs start, ids are initialised
        faults = fail_coordinators(mortal, kill_seconds - 3, random.Random(SEED))
        told = Told()
        for storm in storms:
            told.take(storm.communicate(timeout=AFTERWARDS_S + kill_seconds)[0])
    finally:
        for storm in storms:
            storm.kill()
    assert not told.gave_up, "\n".join(told.gave_up[:5])
    records = settled(mortal.bootstrap, places, TIMEOUT_MS / 1000 + FAILOVER_S)
    judge(told, Counter(record.value.decode() for record in records))
    outcomes = Counter(each["outcome"] for each in told.transactions)
    longest_s = max(each["took_s"] for each in told.transactions)
    print(f"{dict(outcomes)}, the longest took {longest_s:.1f} s; {', '.join(faults)}")
    assert outcomes[COMMITTED] > 0
    assert longest_s < TIMEOUT_MS / 1000 + FAILOVER_S, f"one took {longest_s:.1f} s"


def judge(told: Told, found: Counter[str]) -> None:
    """Every attempt by itself: the records of each carry its name."""
    for each in told.transactions:
        there = found.pop(each["transaction"], 0)
        assert there in (0, each["records"]), f"torn: {there} records of {each}"
        assert each["outcome"] != COMMITTED or there, f"committed and lost: {each}"
        assert each["outcome"] != ABORTED or not there, f"aborted and there: {each}"
    assert not found, f"records that nobody sent: {found}"


@pytest.mark.parametrize(
    ("outcome", "there", "complaint"),
    [
        (COMMITTED, 2, ""),
        (COMMITTED, 1, "torn"),
        (COMMITTED, 0, "committed and lost"),
        (COMMITTED, 4, "torn"),
        (ABORTED, 0, ""),
        (ABORTED, 2, "aborted and there"),
        (UNKNOWN, 0, ""),
        (UNKNOWN, 2, ""),
        (UNKNOWN, 1, "torn"),
    ],
)
def test_the_judge_of_this_test_knows_what_is_torn(outcome: str, there: int, complaint: str) -> None:
    told = Told([{"transaction": "t", "records": 2, "outcome": outcome, "took_s": 1.0}])
    if not complaint:
        judge(told, Counter({"t": there}))
        return
    with pytest.raises(AssertionError, match=complaint):
        judge(told, Counter({"t": there}))
