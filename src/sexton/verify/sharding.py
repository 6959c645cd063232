"""A sharded run, as whoever leads it sees it: processes that decide for themselves (`shard`), and what they tell.

The leader breaks things, looks at brokers, and reads everything at the end, as in any run. Its own operations are a
piece of the history as those of each shard are (`history.merge`).
"""

from __future__ import annotations

import json
import os
import pickle
import selectors
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import sexton
from sexton.history.op import F, Log, Op, Type
from sexton.verify.clients import known
from sexton.verify.generator import Ask, Needs, Topic, Workload
from sexton.verify.plan import Plan
from sexton.verify.shard import ShardOptions
from sexton.verify.systems import System
from sexton.verify.workloads.common import Ends
from sexton.verify.workloads.known import Asked


class ShardedWorkload:
    """What all shards have done, together. Nobody asks it what to do next."""

    def __init__(self, name: str, asked: Asked, inner: Workload) -> None:
        self.name = name
        self.asked = asked
        self._inner = inner
        self._used: set[int] = set()
        self._f = F.TABLE
        self._ends = Ends()
        self._seen: Counter[str] = Counter()

    @property
    def uses_subscribe(self) -> bool:
        return self._inner.uses_subscribe

    @property
    def logs(self) -> Mapping[int, Log]:
        return {log: self.log(log) for log in sorted(self._used)}

    @property
    def seen(self) -> Mapping[str, int]:
        return dict(self._seen)

    def log(self, log: int) -> Log:
        return self._inner.log(log)

    def topic(self, log: int) -> Topic:
        return self._inner.topic(log)

    def needs(self, process: int) -> Needs:
        return Needs(group="-final")

    def next(self, process: int) -> Ask:
        raise AssertionError("shards decide for themselves")

    def completed(self, op: Op) -> None:
        self._ends.completed(op)

    def told(self, what: Mapping[str, Any]) -> None:
        """Called with what a shard reports at its end."""
        self._used.update(what["logs"])
        self._f = F(what["f"])
        for log in what["logs"]:
            self._ends.add(log)
        for log, end in what["ends"].items():
            self._ends.reach(int(log), end)
        self._seen.update(what["seen"])

    def used(self, logs: list[int]) -> None:
        self._used.update(logs)
        for log in logs:
            self._ends.add(log)

    def final(self) -> Ask:
        return self._ends.final(self._f)


class ShardProcess:
    def __init__(self, options: ShardOptions, log_path: Path) -> None:
        self.number = options.number
        self.counts: Mapping[str, int] = {}
        path = str(Path(sexton.__file__).resolve().parents[1])
        client = options.plan.clients[options.number % len(options.plan.clients)]
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sexton.verify.shard"],
                env={**os.environ, **known.environment(client), "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for whoever leads
            )
        self._said = b""
        self.is_ready = False
        self.give(options)

    def give(self, what: ShardOptions | int) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has died: whoever reads what it says finds out
            self._process.stdin.write(pickle.dumps(what))

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def take(self) -> list[dict[str, Any]] | None:
        """What it has said; None: it has ended."""
        data = os.read(self.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._said = (self._said + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def stop(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def end(self) -> None:
        self.stop()
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Shards:
    """All shards of a run, from their start to their end."""

    def __init__(self, workload: ShardedWorkload, system: System, plan: Plan, directory: Path) -> None:
        self._workload = workload
        self._selector = selectors.DefaultSelector()
        self._all: list[ShardProcess] = []
        self.is_told: set[int] = set()
        """Those that have said at their end what they have done."""
        for number in range(plan.shards):
            options = ShardOptions(
                number=number,
                count=plan.shards,
                lanes=plan.concurrency // plan.shards,
                plan=plan,
                system=replace(system, cluster=None, compactor=None, metastore=None, store=None),
                workload=workload.name,
                asked=workload.asked,
                path=directory / f"piece-shard-{number}.jsonl",
            )
            shard = ShardProcess(options, directory / "clients.log")
            self._all.append(shard)
            self._selector.register(shard, selectors.EVENT_READ)

    @property
    def counts(self) -> Mapping[Type, int]:
        """Operations of all shards, by type."""
        return {type_: sum(shard.counts.get(type_.name, 0) for shard in self._all) for type_ in Type}

    @property
    def is_starting(self) -> bool:
        """Whether one that has not ended is not ready yet."""
        waiting = set(self.left)
        return any(not shard.is_ready and shard.number in waiting for shard in self._all)

    def go(self, start_ns: int) -> None:
        for shard in self._all:
            shard.give(start_ns)

    @property
    def left(self) -> list[int]:
        """Shards that have not ended."""
        return [key.fileobj.number for key in self._selector.get_map().values()]  # type: ignore[union-attr]

    def take(self, timeout_s: float) -> list[int]:
        """The logs that were named since this was called last."""
        named: list[int] = []
        for key, _ in self._selector.select(timeout_s):
            shard: Any = key.fileobj
            said = shard.take()
            if said is None:
                self._selector.unregister(shard)
                continue
            for each in said:
                shard.is_ready |= "ready" in each
                shard.counts = each.get("counts", shard.counts)
                named += each.get("logs", ())
                if "ends" in each:
                    self.is_told.add(shard.number)
                    self._workload.told(each)
        self._workload.used(named)
        return named

    def stop(self) -> None:
        for shard in self._all:
            shard.stop()

    def close(self) -> None:
        for shard in self._all:
            shard.end()
        self._selector.close()
