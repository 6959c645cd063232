"""Carries out a run's faults in another thread, one action at a time, and writes them into the history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from sexton.errors import SextonError
from sexton.history.op import NEMESIS, Ext, Op, Type
from sexton.verify.faults.base import Fault, Told, heal
from sexton.verify.faults.schedule import Act
from sexton.verify.run_history import Listener, RunHistory


class Nemesis:
    def __init__(
        self, faults: Mapping[str, Fault], history: RunHistory, pool: ThreadPoolExecutor, listener: Listener
    ) -> None:
        self.faults = faults
        self._history = history
        self._pool = pool
        self._listener = listener
        self._future: Future[Told] | None = None
        self._act: Op | None = None
        """What it is doing, as it was written down."""

    @property
    def is_busy(self) -> bool:
        return self._future is not None

    def begin_act(self, act: Act) -> None:
        its = self.faults[act.fault]
        ext = {str(Ext.PHASE): "start" if act.begins else "stop", "target": str(act.target)}
        self.begin(act.fault, ext, (lambda: its.begin(act)) if act.begins else its.end)

    def begin(self, f: str, ext: Mapping[str, Any], action: Callable[[], Told]) -> None:
        self._act = self._history.write(NEMESIS, Type.INVOKE, f, ext=ext)
        self._future = self._pool.submit(action)

    def take(self) -> None:
        """Writes down what came of the last action, if it is done."""
        if self._future is None or not self._future.done():
            return
        future, asked = self._future, self._act
        self._future = None
        assert asked is not None
        error = ""
        told = Told()
        try:
            told = future.result()
        except (SextonError, OSError) as failed:  # of a disk that another fault has broken, for one
            error = str(failed)
        ext = {**asked.ext, **told.ext, "value": list(told.hit)}
        if asked.ext.get(Ext.PHASE) == "start" and not told.hit:
            del ext[str(Ext.PHASE)]  # nobody was there to be hit: no fault is in force
        index, now_ns = self._history.next()
        self._history.add(replace(asked, index=index, time_ns=now_ns, type=Type.INFO, error=error, ext=ext))
        more = [f"{name} {value}" for name, value in told.ext.items()]
        words = [asked.f, str(asked.ext.get(Ext.PHASE, "")), *map(str, told.hit), *more, error.partition("\n")[0]]
        self._listener.fault(" ".join(filter(None, words)))

    def close(self) -> None:
        if self._future is not None:
            wait([self._future])
        heal(self.faults.values())
