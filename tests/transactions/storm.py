"""Many producers of one client in one process: transactions over random partitions until the time is over.

    python -m tests.transactions.storm '{"driver": "confluent", "bootstrap": ..., ...}'

Prints one JSON object for each transaction that it tried: its name, how many records it sent, what became of it, and
how long it took. The records of a transaction carry its name, so that a reader can tell which of them are there.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import threading
import time
import traceback
from typing import Any, Final

from sexton.verify.clients.base import Failure, Producer
from tests.transactions.application import Application

AFTERWARDS_S: Final = 90
"""How long the last transaction may go on trying: only a cluster that hangs needs so long."""

PLACES_MAX: Final = 4


def main() -> None:
    asked = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    lock = threading.Lock()

    def tell(what: dict[str, Any]) -> None:
        with lock:
            answers.write(json.dumps(what) + "\n")
            answers.flush()

    importlib.import_module(f"sexton.verify.clients.{asked['driver']}").prepare()
    end_s = time.monotonic() + asked["seconds"]
    threads = [threading.Thread(target=produce, args=(asked, number, end_s, tell)) for number in range(asked["count"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)  # clients may hold threads


def produce(asked: dict[str, Any], number: int, end_s: float, tell: Any) -> None:
    """One producer's life."""
    name = f"{asked['name']}.{number}"
    rng = random.Random(f"{asked['seed']} {name}")
    driver = importlib.import_module(f"sexton.verify.clients.{asked['driver']}")
    deadline_s = end_s + AFTERWARDS_S

    def make() -> Producer:
        producer: Producer = driver.Producer(asked["bootstrap"], name, asked["timeout_ms"], asked["settings"])
        producer.init()
        return producer

    try:
        application = Application(make)
        turn = 0
        while time.monotonic() < end_s:
            turn += 1
            transaction = f"{name}.{turn}"
            places = rng.sample([tuple(each) for each in asked["places"]], rng.randint(1, PLACES_MAX))

            def work(producer: Producer, places: Any = places, transaction: str = transaction) -> None:
                for topic, partition in places:
                    producer.send(topic, partition, [transaction.encode()])

            start_s = time.monotonic()
            outcome = application.attempt(work, deadline_s)
            took_s = time.monotonic() - start_s
            tell({"transaction": transaction, "records": len(places), "outcome": outcome, "took_s": took_s})
        application.producer.close()
    except Failure as failure:
        tell({"gave_up": name, "why": str(failure)})
    except BaseException:
        tell({"gave_up": name, "why": traceback.format_exc()})


if __name__ == "__main__":
    main()
