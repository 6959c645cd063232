"""Carries out the schedule of faults, and takes every one of them back at the end."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Protocol

from sexton.simulate.cluster import DATA, Node, SimulatedCluster
from sexton.simulate.disk import VOLUME_BYTES, Trouble, VirtualDisk
from sexton.simulate.faults import FORCING_S, Fault, Kind
from sexton.simulate.inode import Inode
from sexton.simulate.loop import MS, NS
from sexton.simulate.metastore import HOST as METASTORE
from sexton.simulate.objects import HOST as STORE
from sexton.simulate.server_faults import ServerFaults, Starter, Undo

ALONE_S = 8
"""Longer than it takes to start, and to be elected."""

PAGE_BYTES = (512, 4096)
FULL_PARTS = (
    "",
    ".log",
    "index",
    ".snapshot",
    "leader-epoch-checkpoint",
    "compaction-watermarks",
    "log-start-offset",
    "staged-",
    "acknowledges-unflushed",
    "replication-offset-checkpoint",
    "flushed-points",
)
OF_THE_FOLDER = ("replication-offset-checkpoint", "flushed-points")
READ_PARTS = ("", ".log", "index")

ATTEMPTS_TO_LEAVE_ISR = 20
"""Seconds: longer than a lease. Whoever is in sync then is alone so."""


class Known(Protocol):
    """What the nemesis asks before a fault that destroys data: a loss that no system survives proves nothing. The judge
    knows."""

    def holds_something_alone(self, node: Node) -> bool:
        """Whether something acknowledged is on no other machine."""
        ...

    def is_in_sync(self, node: Node) -> bool:
        """Whether it is in the ISR of anything."""
        ...

    def depends_on_lost_disks(self, node: Node) -> bool:
        """Whether after a power loss it would leave an ISR to machines whose disks are gone."""
        ...


class Nemesis:
    def __init__(
        self,
        cluster: SimulatedCluster,
        clients: Sequence[str],
        known: Known,
        *,
        force_leaders: Callable[[], object],
        wipe_store: Callable[[], object],
    ) -> None:
        """`force_leaders` sends an operator. `wipe_store` takes from the store of cloud topics what nobody may rely
        on."""
        self._cluster = cluster
        self._clients = clients
        self._known = known
        self._force_leaders = force_leaders
        self._is_quiet = False
        """An old disk has come back: until its broker has started, nothing else goes wrong."""
        self._is_over = False
        self._active: dict[int, Callable[[], object]] = {}
        self._number = 0
        self.done_count = 0
        self.old_images_count = 0
        self._starters: dict[Kind, Starter] = {
            Kind.KILL: lambda fault: self._down(fault, power_lost=False),
            Kind.POWER: self._power,
            Kind.ABSENCE: self._power,
            Kind.RESTART: self._restart,
            Kind.PAUSE: self._pause,
            Kind.WIPE: self._wipe,
            Kind.OLD_IMAGE: self._image,
            Kind.FORCING: self._force,
            Kind.CUT: lambda fault: self._cut(_both_ways([fault.targets])),
            Kind.CUT_ONE_WAY: lambda fault: self._cut([fault.targets]),
            Kind.ISOLATION: self._isolate,
            Kind.NO_METASTORE: lambda fault: self._cut(_both_ways([(fault.targets[0], METASTORE)])),
            Kind.DEAF_METASTORE: lambda fault: self._cut([(METASTORE, fault.targets[0])]),
            Kind.CLOCK_JUMP: self._clock_jump,
            Kind.SLOW_DISK: self._slow_disk,
            Kind.FULL_DISK: self._full_disk,
            Kind.FAILING_DISK: self._failing_disk,
            Kind.SCATTER: self._scatter,
            Kind.FULL_PLACE: self._full_place,
            Kind.FAILING_READS: self._failing_reads,
            Kind.BIT_ROT: self._rot,
            Kind.SLOW_NETWORK: self._slow_network,
            Kind.BREAKING_NETWORK: self._breaking_network,
            Kind.BLIP: self._isolate,
            Kind.THIN_NETWORK: self._thin_network,
            Kind.NO_STORE: lambda fault: self._cut(_both_ways([(fault.targets[0], STORE)])),
            Kind.DEAF_STORE: lambda fault: self._cut([(STORE, fault.targets[0])]),
            **ServerFaults(cluster, clients, wipe_store).starters(),
        }

    def plan(self, faults: Sequence[Fault]) -> None:
        loop = self._cluster.loop
        for fault in faults:
            loop.call_for(loop.world, max(0, fault.at_ms * MS - loop.now_ns), self._begin, fault)

    def _begin(self, fault: Fault) -> None:
        if self._is_quiet and any(node.is_wiped for node in self._cluster.nodes.values()):
            self._cluster.trace.note("nemesis", f"spares the cluster {fault}: a machine has an old disk")
            return
        self._is_quiet = False
        self._cluster.trace.note("nemesis", str(fault))
        undo = self._starters[fault.kind](fault)
        self.done_count += 1
        if undo is not None:
            self._keep(fault.lasts_ms * MS, undo, f"end of {fault}")

    def _keep(self, lasts_ns: int, undo: Callable[[], object], note: str = "") -> None:
        """Keeps the fault in force until its time is over, or everything is healed."""
        loop = self._cluster.loop
        self._number += 1
        self._active[self._number] = undo
        loop.call_for(loop.world, lasts_ns, self._end, self._number, note)

    def _end(self, number: int, note: str) -> None:
        undo = self._active.pop(number, None)
        if undo is not None:
            if note:
                self._cluster.trace.note("nemesis", note)
            undo()

    def heal(self) -> None:
        """Takes back whatever is still in force."""
        self._cluster.trace.note("nemesis", "heals everything")
        self._is_over = True
        self._take_back()
        for node in self._cluster.nodes.values():
            if node.needs_operator:
                node.needs_operator = False
                self._cluster.kill(node, power_lost=False)
            self._cluster.start(node)

    def _take_back(self) -> None:
        active, self._active = list(self._active.values()), {}
        for undo in active:
            undo()

    # Processes

    def _node(self, fault: Fault) -> Node:
        return self._cluster.nodes[fault.targets[0]]

    def _down(self, fault: Fault, *, power_lost: bool) -> Undo:
        return self._down_node(self._node(fault), power_lost=power_lost)

    def _power(self, fault: Fault) -> Undo | None:
        node = self._node(fault)
        if self._known.depends_on_lost_disks(node):
            # It may lack what it had not flushed, and leaves the ISR to them: then only an operator can go on.
            self._cluster.trace.note("nemesis", f"spares {node.name}: the others in sync have lost their disks")
            return None
        return self._down_node(node)

    def _down_node(self, node: Node, *, power_lost: bool = True) -> Undo:
        node.is_held_down += 1
        self._cluster.kill(node, power_lost=power_lost)
        return lambda: self._up(node)

    def _up(self, node: Node) -> None:
        node.is_held_down -= 1
        self._cluster.start(node)

    def _restart(self, fault: Fault) -> Undo | None:
        node = self._node(fault)
        if any(other.is_wiped for other in self._cluster.nodes.values()):
            # It would leave the in-sync replicas to one whose disk is gone, before anybody can know that it is.
            self._cluster.trace.note("nemesis", f"spares {node.name}: another machine has lost its disk")
            return None
        node.is_held_down += 1
        self._cluster.stop_orderly(node, lambda: self._cluster.start(node))
        return lambda: self._up(node)

    def _wipe(self, fault: Fault) -> Undo | None:
        node = self._node(fault)
        others = [other for other in self._nodes() if other is not node]
        if self._known.holds_something_alone(node) or node.is_stopping or not all(map(self._is_well, others)):
            # One that is away is about to leave the in-sync replicas to this one: then only an operator can go on.
            self._cluster.trace.note("nemesis", f"spares {node.name}: it alone holds something, or may soon")
            return None
        undo = self._down(fault, power_lost=True)
        self._cluster.replace_disk(node)
        return undo

    def _image(self, fault: Fault) -> None:
        """Takes an image of the disk of a machine that is off."""
        node, loop = self._node(fault), self._cluster.loop

        def take() -> None:
            image, number = node.volume.image(), node.starts_count
            self._cluster.start(node)
            is_alone = bool(fault.amount & 2)
            loop.call_for(loop.world, fault.lasts_ms * MS, self._lose_to_image, node, image, number, is_alone)

        if fault.amount & 1 and not any(other.is_wiped for other in self._cluster.nodes.values()):
            self._cluster.stop_orderly(node, take)
        else:
            self._cluster.kill(node, power_lost=True)
            take()

    def _lose_to_image(self, node: Node, image: VirtualDisk, number: int, is_alone: bool) -> None:
        if self._is_over or node.is_wiped or node.last_started <= number:
            return
        self._cluster.trace.note("nemesis", f"{node.name} loses power; an old image of its disk is at hand")
        others = [other for other in self._nodes() if other is not node]
        is_safe = not self._known.holds_something_alone(node) and all(map(self._is_well, others))
        if is_safe:
            self._take_back()  # which may start it
        self._cluster.kill(node, power_lost=True)
        if is_safe:
            self._is_quiet = True
            if is_alone:
                back = [self._down_node(other) for other in self._nodes() if other is not node]
                self._keep(ALONE_S * NS, lambda: [each() for each in back])
            self._come_back(node, image)
        else:
            node.is_held_down += 1
            self._wait_to_come_back(node, image, ATTEMPTS_TO_LEAVE_ISR)

    def _wait_to_come_back(self, node: Node, image: VirtualDisk, attempts: int) -> None:
        if self._is_over or not attempts or not self._known.is_in_sync(node):
            node.is_held_down -= 1
            if self._is_over or not attempts:
                self._cluster.start(node)
            else:
                self._come_back(node, image)
            return
        loop = self._cluster.loop
        loop.call_for(loop.world, NS, self._wait_to_come_back, node, image, attempts - 1)

    def _come_back(self, node: Node, image: VirtualDisk) -> None:
        self._cluster.trace.note("nemesis", f"{node.name} comes back with an old image of its disk")
        self.old_images_count += 1
        self._cluster.replace_disk(node, image)
        self._cluster.start(node)

    def _force(self, fault: Fault) -> None:
        node = self._node(fault)
        others = [other for other in self._nodes() if other is not node]
        if any(each.is_wiped for each in self._nodes()):
            return
        up = self._down(fault, power_lost=True)

        def swap() -> None:
            self._cluster.trace.note("nemesis", f"only {node.name} is there")
            back = [self._down_node(other) for other in others]
            self._keep(FORCING_S * NS, lambda: [each() for each in back])
            up()
            if not self._is_over:
                self._force_leaders()

        self._keep(fault.lasts_ms * MS, lambda: up() if self._is_over else swap())

    @staticmethod
    def _is_well(node: Node) -> bool:
        is_running = node.is_started and node.process is not None and not node.process.paused
        return is_running and not (node.is_wiped or node.is_stopping)

    def _nodes(self) -> Iterable[Node]:
        return self._cluster.nodes.values()

    def _pause(self, fault: Fault) -> Undo | None:
        process = self._node(fault).process
        if process is None or process.paused:
            return None
        self._cluster.loop.pause(process)
        return lambda: self._cluster.loop.resume(process)

    # Network

    def _cut(self, pairs: Sequence[tuple[str, ...]]) -> Undo:
        fabric = self._cluster.fabric
        for source, target in pairs:
            fabric.cut(source, target)

        def undo() -> None:
            for source, target in pairs:
                fabric.heal(source, target)

        return undo

    def _isolate(self, fault: Fault) -> Undo:
        name = fault.targets[0]
        others = [other for other in (*self._cluster.nodes, *self._clients) if other != name]
        if not fault.amount & 1:
            others.append(METASTORE)
        return self._cut(_both_ways([(name, other) for other in others]))

    def _slow_network(self, fault: Fault) -> Undo:
        host = self._node(fault).host
        host.slowness, host.bytes_per_s = fault.amount, 1 << 22

        def undo() -> None:
            host.slowness, host.bytes_per_s = 1, None

        return undo

    def _thin_network(self, fault: Fault) -> Undo:
        host = self._node(fault).host
        host.bytes_per_s = fault.amount * 1000

        def undo() -> None:
            host.bytes_per_s = None

        return undo

    def _breaking_network(self, fault: Fault) -> Undo:
        weather = self._cluster.fabric.weather
        weather.break_probability = fault.amount / 1000

        def undo() -> None:
            weather.break_probability = 0.0

        return undo

    # Clocks, disks

    def _clock_jump(self, fault: Fault) -> None:
        self._node(fault).wall.jump(fault.amount)

    def _slow_disk(self, fault: Fault) -> Undo:
        weather = self._node(fault).volume.weather
        weather.slowness = fault.amount

        def undo() -> None:
            weather.slowness = 1

        return undo

    def _full_disk(self, fault: Fault) -> Undo:
        node = self._node(fault)
        volume = node.volume
        node.disk_may_fail = True
        volume.total_bytes = volume.used_bytes

        def undo() -> None:
            volume.total_bytes = VOLUME_BYTES

        return undo

    def _failing_disk(self, fault: Fault) -> Undo:
        node = self._node(fault)
        weather = node.volume.weather
        node.disk_may_fail = node.needs_operator = node.is_disk_damaged = True
        weather.flush_failure_probability = fault.amount / 100

        def undo() -> None:
            weather.flush_failure_probability = 0.0

        return undo

    def _scatter(self, fault: Fault) -> Undo | None:
        weather = self._node(fault).volume.weather
        weather.page_bytes = PAGE_BYTES[fault.amount]
        undo = self._power(fault)
        weather.page_bytes = 0
        return undo

    def _full_place(self, fault: Fault) -> Undo:
        number, part = divmod(fault.amount, len(FULL_PARTS))
        if FULL_PARTS[part] in OF_THE_FOLDER:
            return self._trouble(fault, Trouble(errno.ENOSPC, DATA, FULL_PARTS[part]))
        return self._trouble(fault, Trouble(errno.ENOSPC, self._partition(fault, number), FULL_PARTS[part]))

    def _failing_reads(self, fault: Fault) -> Undo:
        node = self._node(fault)
        node.needs_operator = node.is_disk_damaged = True
        number, part = divmod(fault.amount, len(READ_PARTS))
        return self._trouble(fault, Trouble(errno.EIO, self._partition(fault, number), READ_PARTS[part]))

    def _rot(self, fault: Fault) -> Undo | None:
        node = self._node(fault)
        are_others_up = all(other.is_started for other in self._cluster.nodes.values() if other is not node)
        closed = [
            (directory, name, inode)
            for directory in node.volume.directories(DATA)
            for name, inode in closed_logs(node.volume.files(directory), only_certified=not are_others_up)
            if inode.content and not inode.changes and inode.flipped is None
        ]
        if not closed or self._known.holds_something_alone(node):
            return None
        node.needs_operator = node.is_disk_damaged = True
        number, bit = divmod(fault.amount, 8)
        directory, name, inode = closed[number % len(closed)]
        inode.flipped = number // len(closed) % len(inode.content), 1 << bit
        self._cluster.trace.note("nemesis", f"{node.name}: byte {inode.flipped[0]} of {directory}/{name} has rotted")

        def undo() -> None:
            inode.flipped = None

        return undo

    def _partition(self, fault: Fault, number: int) -> str:
        """The directory of one that is there now."""
        found = self._node(fault).volume.directories(DATA)
        return found[number % len(found)] if found else f"{DATA}/none"

    def _trouble(self, fault: Fault, trouble: Trouble) -> Undo:
        troubles = self._node(fault).volume.troubles
        troubles.append(trouble)
        self._cluster.trace.note("nemesis", str(trouble))
        return lambda: troubles.remove(trouble)


def _both_ways(pairs: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [way for source, target in pairs for way in ((source, target), (target, source))]


def closed_logs(files: Sequence[tuple[str, Inode]], *, only_certified: bool) -> list[tuple[str, Inode]]:
    """All but the last. What rots before a snapshot certifies it looks like an unfinished write, and only other
    replicas know better (docs/decisions, 15)."""
    logs = [file for file in files if file[0].endswith(".log")]
    certified = max((_base_offset(name) for name, _ in files if name.endswith(".snapshot")), default=-1)
    return [one for one, (following, _) in pairwise(logs) if not only_certified or _base_offset(following) <= certified]


def _base_offset(name: str) -> int:
    return int(name.partition(".")[0])
