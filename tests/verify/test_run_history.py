"""The history of a run while it is written, and the file that has its faults alone."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sexton.errors import SextonError
from sexton.history.lines import Writer
from sexton.history.op import NEMESIS, F, Op, Type
from sexton.verify.faults.base import Fault, Scene, Told
from sexton.verify.faults.schedule import Act, Target
from sexton.verify.nemesis import Nemesis
from sexton.verify.run_history import FAULTS, RunHistory
from sexton.verify.selftest import Silent


class Stuck(Fault):
    """Begins, and cannot be ended."""

    name = "stuck"

    def begin(self, act: Act) -> Told:
        return Told([2, 3], {"how": "slowly"})

    def end(self) -> Told:
        raise SextonError("it does not end")

    def heal(self) -> None: ...


def carried_out(nemesis: Nemesis, *, begins: bool) -> None:
    nemesis.begin_act(Act(at_ns=0, fault="stuck", begins=begins, target=Target.MINORITY, choice=1))
    while nemesis.is_busy:
        nemesis.take()
        time.sleep(0.001)


def test_faults_stand_in_a_file_of_their_own_as_soon_as_they_are_known(tmp_path: Path) -> None:
    path = tmp_path / FAULTS
    whole = io.BytesIO()
    faults: Mapping[str, Fault] = {"stuck": Stuck(Scene(None))}
    now_ns: Callable[[], int] = time.monotonic_ns
    with path.open("wb") as file, ThreadPoolExecutor(1) as pool:
        history = RunHistory(Writer(whole), now_ns, file)
        nemesis = Nemesis(faults, history, pool, Silent())
        history.write(0, Type.INVOKE, F.POLL)
        assert path.read_bytes() == b""
        carried_out(nemesis, begins=True)
        begun = path.read_bytes().splitlines()
        assert len(begun) == 2, "what was asked for, and what came of it"
        assert b'"value":[2,3]' in begun[1]
        assert b'"how":"slowly"' in begun[1]
        carried_out(nemesis, begins=False)
        assert b'"error":"it does not end' in path.read_bytes().splitlines()[-1]
        history.write(0, Type.OK, F.POLL)
        history.writer.flush()
    lines = whole.getvalue().splitlines()
    assert path.read_bytes().splitlines() == [line for line in lines if b'"process":"nemesis"' in line]
    assert len(lines) == 6
    assert _processes(history.ops) == [0, NEMESIS, NEMESIS, NEMESIS, NEMESIS, 0]


def _processes(ops: list[Op]) -> list[int]:
    return [op.process for op in ops]
