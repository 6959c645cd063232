"""What leaders and followers do: records are written and copied, in-sync sets decided, asked for, and seen."""

from __future__ import annotations

from tests.model.errors import Violation
from tests.model.insync import real
from tests.model.insync.arenas import Arena
from tests.model.insync.rules import Rules
from tests.model.insync.state import (
    ACTIVE,
    NO_LOG,
    Held,
    Lead,
    Live,
    Pending,
    Progress,
    Request,
    Row,
    World,
    shared_end,
)


class Leaders:
    def __init__(self, arena: Arena, rules: Rules) -> None:
        self.arena = arena
        self.rules = rules

    # Records

    def append(self, world: World, index: int) -> bool:
        broker = world.brokers[index]
        if not broker.lead or world.store.written >= self.arena.records_max:
            return False
        log = (*broker.log, broker.lead.row.leader_epoch)
        world.put(written=world.store.written + 1)
        world.set(index, log=log, flushed=broker.flushed if self.arena.lazy_flush else len(log))
        self.raise_high_watermark(world, index)
        return True

    def flush(self, world: World, index: int) -> bool:
        broker = world.brokers[index]
        if not broker.process or broker.flushed == len(broker.log):
            return False
        world.set(index, flushed=len(broker.log))
        return True

    def raise_high_watermark(self, world: World, index: int) -> None:
        """Everything below it is acknowledged."""
        broker = world.brokers[index]
        lead = broker.lead
        assert isinstance(lead, Lead)
        counted, pending = lead, lead.pending
        if pending and not self.rules.leaving_is_counted:
            counted = counted._replace(row=lead.row._replace(isr=tuple(b for b in lead.row.isr if b in pending.isr)))
        if pending and not self.rules.joining_is_counted:
            counted = counted._replace(pending=())
        committed = real.committed_end(counted, index, len(broker.log))
        if committed <= lead.high_watermark:
            return
        world.lead(index, high_watermark=committed)
        truth = world.store.truth
        new = broker.log[:committed]
        if shared_end(new, truth) < min(len(new), len(truth)):
            raise Violation("rule 1", f"broker {index} acknowledges other records than were acknowledged before")
        if len(new) > len(truth):
            world.put(truth=new)

    # Replication

    def fetch(self, world: World, index: int, leader: int, count: int) -> bool:
        """One request and its answer, of `count` records at most, 0 for all. What the follower holds then, the leader
        hears with the next one."""
        follower, source = world.brokers[index], world.brokers[leader]
        if not self._may_fetch(world, index, leader):
            return False
        shared = shared_end(follower.log, source.log)
        if shared < len(follower.log):
            world.set(index, log=follower.log[:shared], flushed=min(follower.flushed, shared))
            return True
        if not self.arena.lazy_flush:
            world.set(index, flushed=len(follower.log))
        self._hear(world, leader, index, self._held(world, index))
        new = source.log[len(follower.log) :]
        world.set(index, log=follower.log + (new[:count] if count else new))
        return True

    def send_fetch(self, world: World, index: int) -> bool:
        """It will arrive later, or never."""
        follower = world.brokers[index]
        if not follower.process or not follower.is_reconciled or follower.lead or follower.incarnation <= NO_LOG:
            return False
        if not self.arena.lazy_flush:
            world.set(index, flushed=len(follower.log))
        world.set(index, late=self._held(world, index))
        return True

    def deliver_fetch(self, world: World, index: int, leader: int) -> bool:
        late, lead = world.brokers[index].late, world.brokers[leader].lead
        if not late or not lead or late.leader_epoch != lead.row.leader_epoch or index == leader:
            return False
        world.set(index, late=())
        lies_on = world.brokers[leader].log[: len(late.log)] == late.log
        if lies_on and self._is_taken(lead, index, late.incarnation):
            self._hear(world, leader, index, late)
        return True

    def _may_fetch(self, world: World, index: int, leader: int) -> bool:
        follower, lead = world.brokers[index], world.brokers[leader].lead
        if not lead or index == leader or follower.lead or not follower.process or not follower.is_reconciled:
            return False
        is_its_leader = follower.following == lead.row.leader_epoch
        return is_its_leader and self._is_taken(lead, index, follower.incarnation)

    def _is_taken(self, lead: Lead, index: int, incarnation: int) -> bool:
        if index not in lead.row.replicas or incarnation <= NO_LOG:
            return False
        return abs(lead.row.logs[index]) == incarnation or not self.rules.fetch_names_log

    def _held(self, world: World, index: int) -> Held:
        broker = world.brokers[index]
        return Held(broker.process, broker.incarnation, broker.following, broker.log)

    def _hear(self, world: World, leader: int, index: int, held: Held) -> None:
        lead = world.brokers[leader].lead
        assert isinstance(lead, Lead)
        incarnation = held.incarnation if self.rules.fetch_names_log else abs(lead.row.logs[index])
        lead = real.after_fetch(lead, leader, index, held.process, len(held.log), incarnation)
        world.set(leader, lead=lead)
        self.raise_high_watermark(world, leader)

    # In-sync sets: decided, asked for

    def join(self, world: World, index: int, *followers: int) -> bool:
        """As `Membership` decides it: who has caught up, as the process that did."""
        lead = world.brokers[index].lead
        if not lead or lead.pending or self.waits(world, index):
            return False
        named: list[tuple[int, int]] = []
        for one in followers:
            progress = lead.progress[one]
            known = lead.processes[one]
            if not real.has_caught_up(lead, index, one):
                return False
            assert isinstance(progress, Progress)
            if self.rules.join_names_process and (known.status != ACTIVE or known.epoch != progress.process):
                return False
            named.append((one, progress.process))
        wanted = real.expanded(lead.row, followers)
        return wanted is not None and self._ask_first(world, index, wanted, tuple(named))

    def leave(self, world: World, index: int, follower: int) -> bool:
        """It lags."""
        lead = world.brokers[index].lead
        if not lead or lead.pending or self.waits(world, index):
            return False
        wanted = real.shrunk(lead.row, follower)
        return wanted is not None and self._ask_first(world, index, wanted, ())

    def order_wipe(self, world: World, index: int, follower: int) -> bool:
        """The fetch fence turned it away. (It would not: whether it should is not the question here.)"""
        lead = world.brokers[index].lead
        if not lead or lead.pending or self.waits(world, index) or follower not in lead.row.replicas:
            return False
        fresh = self.fresh_log(world, follower)
        if follower == index or fresh is None:
            return False
        wanted = real.shrunk(lead.row, follower) or lead.row
        logs = (*wanted.logs[:follower], fresh, *wanted.logs[follower + 1 :])
        return self._ask_first(world, index, wanted._replace(logs=logs), ())

    def fresh_log(self, world: World, broker: int) -> int | None:
        made = world.store.made
        fresh = made[broker] + 1
        if fresh > self.arena.incarnations_max:
            return None
        world.put(made=(*made[:broker], fresh, *made[broker + 1 :]))
        return fresh

    def _ask_first(self, world: World, index: int, wanted: Row, named: Live) -> bool:
        world.lead(index, pending=Pending(wanted.isr, wanted.logs, named))
        return self._ask(world, index)

    def ask_again(self, world: World, index: int) -> bool:
        lead = world.brokers[index].lead
        if not lead or not lead.pending or self.waits(world, index):
            return False
        return self._ask(world, index)

    def _ask(self, world: World, index: int) -> bool:
        if len(world.store.requests) >= self.arena.requests_max:
            return False
        broker = world.brokers[index]
        lead = broker.lead
        assert isinstance(lead, Lead)
        assert lead.pending
        named = dict(lead.pending.live)
        if not self.rules.join_names_who_caught_up:
            named = {one: lead.processes[one].epoch for one in named}
        if not self.rules.join_names_process:
            named = {}
        live = tuple(sorted({**named, index: broker.process}.items()))
        request = Request(real.asked_for(lead), live, index)
        world.put(requests=tuple(sorted((*world.store.requests, request))))
        return True

    @staticmethod
    def waits(world: World, index: int) -> bool:
        return any(request.waiting == index for request in world.store.requests)

    # ... and answered

    def hears_nothing(self, world: World, index: int) -> None:
        """The connection broke, or the answer took too long."""
        lead = world.brokers[index].lead
        if lead and lead.pending:
            world.set(index, lead=real.after_silence(lead, index))

    def is_refused(self, world: World, index: int) -> None:
        """StaleError: this attempt has changed nothing."""
        lead = world.brokers[index].lead
        if lead and lead.pending:
            if lead.pending.is_unsure and not self.rules.unknown_outcome_is_withdrawn:
                return
            if not self.rules.unknown_outcome_counts:
                lead = lead._replace(pending=lead.pending._replace(is_unsure=False))
            world.set(index, lead=real.after_refusal(lead, index))
            self.raise_high_watermark(world, index)

    # Rows as they are seen

    def poll(self, world: World, index: int) -> bool:
        broker = world.brokers[index]
        if not broker.process or not broker.is_reconciled:
            return False
        before = world.frozen()
        self.take_row(world, index)
        return world.frozen() != before

    def take_row(self, world: World, index: int) -> None:
        row, processes = world.store.row, world.store.processes
        broker = world.brokers[index]
        if broker.lead and broker.lead.row.leader_epoch == row.leader_epoch and index in row.replicas:
            self.follow_row(world, index, row)
            world.lead(index, processes=processes)
            return
        if broker.lead and row.leader_epoch > broker.lead.row.leader_epoch:
            broker = world.set(index, lead=())
        if index not in row.replicas:
            world.set(index, incarnation=NO_LOG, log=(), flushed=0, lead=(), following=row.leader_epoch)
            return
        if row.logs[index] < 0:
            return
        if broker.incarnation != row.logs[index]:
            world.set(index, incarnation=row.logs[index], log=(), flushed=0)
        if row.leader_epoch > broker.following or (row.leader == index and not broker.lead):
            self._take_role(world, index, row)

    def _take_role(self, world: World, index: int, row: Row) -> None:
        broker = world.set(index, following=row.leader_epoch)
        if row.leader != index or row.leader_epoch in broker.log:
            return  # an epoch that its own log names was led by its former process
        truth = world.store.truth
        if broker.log[: len(truth)] != truth:
            raise Violation("rule 1", f"broker {index} leads without acknowledged records")
        lead = Lead(row, world.store.processes, len(broker.log))
        world.set(index, lead=lead, flushed=broker.flushed if self.arena.lazy_flush else len(broker.log))
        self.raise_high_watermark(world, index)

    def follow_row(self, world: World, index: int, row: Row) -> None:
        """The row changed, the leader and its epoch did not."""
        lead = world.brokers[index].lead
        assert isinstance(lead, Lead)
        if row.epoch <= lead.row.epoch:
            return
        if not self.rules.progress_of_incarnation:
            heard = tuple(p and p._replace(incarnation=abs(row.logs[b])) for b, p in enumerate(lead.progress))
            lead = lead._replace(progress=heard)
        world.set(index, lead=real.after_row(lead, index, row))
        self.raise_high_watermark(world, index)
