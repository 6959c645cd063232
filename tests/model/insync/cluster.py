"""What happens to the row, and to brokers: requests that arrive or do not, elections, reassignment, crashes, disks."""

from __future__ import annotations

from sexton.metadata.elections import LogState
from tests.model.errors import Violation
from tests.model.insync import real
from tests.model.insync.leaders import Leaders
from tests.model.insync.state import (
    ACTIVE,
    BROKERS,
    FENCED,
    LOST_LOG,
    NO_LOG,
    STARTING,
    Image,
    Process,
    Request,
    Row,
    World,
    is_possible,
    shared_end,
)


class Cluster(Leaders):
    # Requests under way

    def carry_out(self, world: World, number: int) -> bool:
        """The metastore carries a change out, or refuses it; whoever waits hears of it."""
        request = self._taken(world, number)
        if request is None:
            return False
        row, processes = world.store.row, world.store.processes
        compared = request if self.rules.partition_epoch_compared else request._replace(row=row)
        is_live = is_possible(compared._replace(row=row), row, processes)
        is_written = is_possible(compared, row, processes)
        if is_written:
            world.put(row=request.row._replace(epoch=row.epoch + 1))
            if request.is_last_word:
                self._excuse(world)
        waiting = request.waiting
        if waiting >= 0 and is_written:
            self._take_written(world, waiting)
        elif waiting >= 0 and not is_live:
            self.is_refused(world, waiting)
        return True

    def carry_out_unheard(self, world: World, number: int) -> bool:
        """The same, and the answer is lost."""
        request = self._request(world, number)
        if request is None or request.waiting < 0 or not is_possible(request, world.store.row, world.store.processes):
            return False
        self._taken(world, number)
        world.put(row=request.row._replace(epoch=world.store.row.epoch + 1))
        self.hears_nothing(world, request.waiting)
        return True

    def refuse(self, world: World, number: int) -> bool:
        """Because of another partition's broker in the same batch."""
        request = self._request(world, number)
        if request is None or request.waiting < 0:
            return False
        self._taken(world, number)
        self.is_refused(world, request.waiting)
        return True

    def fail(self, world: World, number: int) -> bool:
        """Never carried out; whoever waits knows nothing."""
        request = self._taken(world, number)
        if request is None:
            return False
        if request.waiting >= 0:
            self.hears_nothing(world, request.waiting)
        return True

    def give_up(self, world: World, number: int) -> bool:
        """Whoever waits has waited too long. The request is under way as before."""
        request = self._request(world, number)
        if request is None or request.waiting < 0:
            return False
        self._taken(world, number)
        self._send(world, request._replace(waiting=-1))
        self.hears_nothing(world, request.waiting)
        return True

    @staticmethod
    def _request(world: World, number: int) -> Request | None:
        requests = world.store.requests
        return requests[number] if number < len(requests) else None

    def _taken(self, world: World, number: int) -> Request | None:
        request = self._request(world, number)
        if request is not None:
            requests = world.store.requests
            world.put(requests=requests[:number] + requests[number + 1 :])
        return request

    @staticmethod
    def _send(world: World, request: Request) -> None:
        world.put(requests=tuple(sorted((*world.store.requests, request))))

    def _take_written(self, world: World, index: int) -> None:
        """Our own compare-and-set succeeded: no need to wait for the poll."""
        lead, row = world.brokers[index].lead, world.store.row
        if lead and lead.row.leader_epoch == row.leader_epoch:
            self.follow_row(world, index, row)

    # What others write to the row

    def _write(self, world: World, row: Row | None) -> bool:
        """At once: read, decided, carried out."""
        if row is None or row.leader_epoch > self.arena.epochs_max:
            return False
        world.put(row=row._replace(epoch=world.store.row.epoch + 1))
        return True

    def _decide(self, world: World, row: Row | None) -> bool:
        """By a controller or an operator. Those who stay in sync may have lost power, and nobody knows yet."""
        before = world.store.row.isr
        if not self._write(world, row):
            return False
        if not any(world.brokers[one].is_last_copy for one in before if one not in world.store.row.isr):
            self._excuse(world)
        return True

    def elect(self, world: World) -> bool:
        return self._decide(world, real.elected(world.store.row, world.store.processes))

    def elect_preferred(self, world: World) -> bool:
        return self._decide(world, real.elected_preferred(world.store.row, world.store.processes))

    def elect_late(self, world: World) -> bool:
        """The controller decides now. When it is carried out, brokers may be others than they were."""
        row = real.elected(world.store.row, world.store.processes)
        if row is None or row.leader_epoch > self.arena.epochs_max:
            return False
        if len(world.store.requests) >= self.arena.requests_max:
            return False
        live = ((row.leader, world.store.processes[row.leader].epoch),) if row.leader >= 0 else ()
        self._send(world, Request(row, live, is_last_word=True))
        return True

    def reassign(self, world: World, target: tuple[int, ...]) -> bool:
        row = real.reassigned(world.store.row, target, world.store.processes)
        return self._decide(world, self._with_logs(world, row))

    def progress(self, world: World) -> bool:
        return self._decide(world, real.progressed(world.store.row, world.store.processes))

    def cancel(self, world: World) -> bool:
        return self._decide(world, real.cancelled(world.store.row, world.store.processes))

    def _with_logs(self, world: World, row: Row | None) -> Row | None:
        """An id for every replica that is new."""
        if row is None:
            return None
        logs = list(row.logs)
        for broker in row.replicas:
            if logs[broker] == NO_LOG:
                fresh = self.fresh_log(world, broker)
                if fresh is None:
                    return None
                logs[broker] = fresh
        return row._replace(logs=tuple(logs))

    # Processes

    def crash(self, world: World, index: int) -> bool:
        """Its machine loses power: what is not flushed is gone."""
        broker = world.brokers[index]
        if not broker.process:
            return False
        self._end(world, index)
        world.set(index, log=broker.log[: broker.flushed], has_lost=self.arena.lazy_flush or broker.has_lost)
        self._excuse(world)
        return True

    def _end(self, world: World, index: int) -> None:
        self._speaks_no_more(world, index)
        world.set(index, process=0, lead=(), is_reconciled=False)

    @staticmethod
    def _speaks_no_more(world: World, index: int) -> None:
        """What it has sent may be carried out all the same."""
        identity = index, world.brokers[index].process
        requests = (
            one._replace(waiting=-1 if one.waiting == index else one.waiting, is_last_word=True)
            if identity in one.live
            else one
            for one in world.store.requests
        )
        world.put(requests=tuple(sorted(requests)))

    @staticmethod
    def _excuse(world: World) -> None:
        if all(world.brokers[one].has_lost for one in world.store.row.isr):
            world.put(is_excused=True)

    @staticmethod
    def _has_all(world: World, index: int) -> bool:
        truth = world.store.truth
        return world.brokers[index].log[: len(truth)] == truth

    def register(self, world: World, index: int) -> bool:
        """A process that starts, or one that was fenced and comes back with all that it knows."""
        broker, known = world.brokers[index], world.store.processes[index]
        if broker.process and known.status != FENCED:
            return False
        if known.epoch >= self.arena.processes_max:
            return False
        world.set_process(index, Process(known.epoch + 1, STARTING))
        world.set(index, process=known.epoch + 1, is_reconciled=False)
        return True

    def reconcile(self, world: World, index: int) -> bool:
        """Makes the row true, takes its role and becomes ACTIVE."""
        broker, store = world.brokers[index], world.store
        process = store.processes[index]
        if not broker.process or broker.is_reconciled or process != Process(broker.process, STARTING):
            return False
        if index in store.row.replicas and not self._make_true(world, index):
            return False
        world.set_process(index, Process(broker.process, ACTIVE))
        world.set(index, is_reconciled=True, is_old=False, has_lost=False, is_last_copy=False)
        self.take_row(world, index)
        return True

    def ask_to_reconcile(self, world: World, index: int) -> bool:
        """It writes what it should, and has not heard in time whether that was carried out: so it looks again."""
        broker, store = world.brokers[index], world.store
        if not broker.process or broker.is_reconciled or index not in store.row.replicas:
            return False
        if store.processes[index] != (broker.process, STARTING) or len(store.requests) >= self.arena.requests_max:
            return False
        is_possible, changed = self._restarted(world, index)
        if not is_possible or changed is None or changed.leader_epoch > self.arena.epochs_max:
            return False
        self._send(world, Request(changed, ((index, broker.process),)))
        return True

    def _restarted(self, world: World, index: int) -> tuple[bool, Row | None]:
        """Whether there is room for a new log, if it needs one; and the row to write, if any."""
        state, store = self._log_state(world, index), world.store
        fresh = self.fresh_log(world, index) if state is LogState.LOST else NO_LOG
        if fresh is None:
            return False, None
        on_disk = world.brokers[index].incarnation
        return True, real.restarted(store.row, index, store.processes, state, on_disk, fresh or 1)

    def _make_true(self, world: World, index: int) -> bool:
        broker, state = world.brokers[index], self._log_state(world, index)
        is_possible, changed = self._restarted(world, index)
        if not is_possible or (changed is not None and not self._write(world, changed)):
            return False
        truth = world.store.truth
        if state is LogState.UNCERTAIN and world.store.row.isr == (index,) and not self._has_all(world, index):
            if not world.store.is_excused:
                raise Violation("rule 1", f"broker {index} has lost power, and is the only one in sync")
            world.put(truth=truth[: shared_end(truth, broker.log)], is_excused=False)
        return True

    def _log_state(self, world: World, index: int) -> LogState:
        broker, row = world.brokers[index], world.store.row
        if broker.incarnation != abs(row.logs[index]):
            return LogState.LOST
        is_sure = not broker.is_old and not broker.has_lost
        return LogState.COMPLETE if is_sure or not self.rules.uncertain_leaves else LogState.UNCERTAIN

    def fence(self, world: World, index: int) -> bool:
        """Its lease ran out. The process may be dead, or know nothing of it."""
        process = world.store.processes[index]
        if process.status == FENCED or self._runs_out_later(world, index):
            return False
        world.set_process(index, process._replace(status=FENCED))
        return True

    @staticmethod
    def _runs_out_later(world: World, index: int) -> bool:
        """The leases of those that were dead when it stopped run out before its own: that much is assumed of clocks."""
        dead = [one for one in BROKERS if one != index and not world.brokers[one].process]
        return world.brokers[index].is_last_copy and any(world.store.processes[one].status != FENCED for one in dead)

    def stop(self, world: World, index: int, is_answered: bool) -> bool:
        """In good order: others lead, everything is flushed. All that live answer, or none."""
        broker, store = world.brokers[index], world.store
        if not broker.process or store.processes[index] != Process(broker.process, ACTIVE):
            return False
        living = [one for one in BROKERS if one != index and world.brokers[one].process and is_answered]
        answering = frozenset(one for one in living if store.processes[one] == (world.brokers[one].process, ACTIVE))
        asked = answering if self.rules.hands_over_to_the_living else None
        self._write(world, real.handed_over(store.row, index, store.processes, asked))
        others = [world.brokers[one] for one in store.row.isr if one != index]
        is_last_copy = index in store.row.isr and all(one.has_lost for one in others)
        is_needed = real.is_needed(world.store.row, index, store.processes, answering)
        world.set(index, flushed=len(broker.log), is_last_copy=is_last_copy)
        self._end(world, index)
        if not (is_needed and self.rules.needed_is_not_fenced):
            world.set_process(index, Process(broker.process, FENCED))
        return True

    # Disks

    def lose_disk(self, world: World, index: int) -> bool:
        broker = world.brokers[index]
        if broker.process or broker.incarnation <= NO_LOG:
            return False
        world.set(index, incarnation=LOST_LOG, log=(), flushed=0, has_lost=True)
        self._excuse(world)
        return True

    def take_image(self, world: World, index: int) -> bool:
        broker = world.brokers[index]
        if broker.image or not broker.process or broker.incarnation <= NO_LOG:
            return False
        world.set(index, image=Image(broker.process, broker.incarnation, broker.log[: broker.flushed]))
        return True

    def restore_image(self, world: World, index: int) -> bool:
        """Of a former process; and not of a replica that is in sync, which no operator may do."""
        broker = world.brokers[index]
        image = broker.image
        if broker.process or not image or index in world.store.row.isr:
            return False
        if image.process >= world.store.processes[index].epoch:
            return False
        log = image.log
        world.set(index, incarnation=image.incarnation, log=log, flushed=len(log), image=(), is_old=True, has_lost=True)
        return True
