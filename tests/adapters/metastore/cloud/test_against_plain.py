"""Anything in any order, against the same rules in plain Python (`plain`), with all tables compared after every step.

Leaders are honest: what one sends at an offset in an epoch is always the same. Everything else may be old, late,
repeated, or by somebody who is fenced."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from sexton.adapters.metastore import migrations, operations, work
from sexton.adapters.metastore.cloud import claiming, committing, objects, replacing, trimming
from sexton.adapters.metastore.cloud.checks import CloudTables, read_tables, step_violations, violations
from sexton.adapters.metastore.databases import IN_MEMORY, Database
from sexton.adapters.metastore.session import Session
from sexton.harness.postgres import Postgres
from sexton.ports.cloud import Claimed, Extent, Gather, Level, Owner, Replacement, Run, WrittenObject, hash_of_settings
from sexton.ports.metastore import Storage
from sexton.ports.work_queue import CompactorRow
from sexton.types import CompactionEpoch, LeaderEpoch
from tests.adapters.metastore.cloud.plain import GARBAGE, PlainPartition, PlainTables
from tests.adapters.metastore.cloud.world import COMPACTOR, NOW_MS, SETTINGS, TOPIC, A, B, gather, l1, leveled, run
from tests.adapters.metastore.rows import CLUSTER, broker, partitions

GRACE = 2
KEYS = st.sampled_from([A, B])
BROKERS = st.sampled_from([1, 2])


class CloudMachine(RuleBasedStateMachine):
    url: ClassVar[str] = IN_MEMORY

    def new_url(self) -> str:
        return self.url

    @initialize()
    def start(self) -> None:
        self.database = Database(self.new_url(), 10_000, lambda _: None)
        self.connection = self.database.engine.connect()
        self.session = Session(self.connection, self.database.beginnings)
        self.plain = PlainTables(partitions={A: PlainPartition(), B: PlainPartition()})
        self.epochs: dict[int, int] = {}
        self.count = 0
        self.sent: list[tuple[Owner, list[Gather]]] = []
        self.plans: list[tuple[Any, int, list[Extent]]] = []
        self.seen: CloudTables | None = None
        migrations.open_cluster(self.session, CLUSTER)
        operations.create_topic(self.session, TOPIC, partitions(TOPIC, 2, storage=Storage.CLOUD), SETTINGS)
        work.register_compactor(self.session, CompactorRow(COMPACTOR, "c", 1, 0))
        self.plain.live_owners.add(Owner.compactor(COMPACTOR))
        for broker_id in (1, 2):
            self.register_broker(broker_id)

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()
            self.database.engine.dispose()

    # Owners and objects

    def owner(self, broker_id: int) -> Owner:
        return Owner.broker(broker_id, self.epochs[broker_id])

    def new(self, owner: Owner, level: Level) -> uuid.UUID:
        self.count += 1
        object_id = uuid.UUID(int=self.count)
        objects.register_objects(self.session, owner, level, [object_id])
        self.plain.register(owner, object_id)
        self.compare()
        return object_id

    def register_broker(self, broker_id: int) -> None:
        former = operations.read_broker(self.session, broker_id)
        if former is not None:
            self.plain.live_owners.discard(Owner.broker(broker_id, former.epoch))
        self.epochs[broker_id] = operations.register_broker(self.session, broker(broker_id), former).epoch
        self.plain.live_owners.add(self.owner(broker_id))

    @rule(broker_id=BROKERS)
    def broker_starts_anew(self, broker_id: int) -> None:
        self.register_broker(broker_id)

    @rule(data=st.data(), broker_id=BROKERS)
    def release(self, data: st.DataObject, broker_id: int) -> None:
        owner = self.owner(broker_id)
        ids = data.draw(st.lists(st.sampled_from(sorted(self.plain.states)))) if self.plain.states else []
        for object_id in set(ids) & set(self.plain.pending_of(owner)):
            self.plain.discard(object_id)
        objects.release_objects(self.session, owner, ids)
        self.compare()

    @rule()
    def expire(self) -> None:
        assert objects.expire_owners(self.session, 1000) == self.plain.expire()
        self.compare()

    @rule()
    def next_round(self) -> None:
        self.plain.round += 1
        assert objects.advance_round(self.session, self.plain.round - 1) == self.plain.round  # type: ignore[arg-type]
        self.compare()

    @rule()
    def collect(self) -> None:
        found = [row.object_id for row in objects.collect(self.session, GRACE, 1000)]
        objects.forget_objects(self.session, found)
        assert set(found) == self.plain.forget(GRACE)
        self.compare()

    # Leaders

    @rule(key=KEYS, broker_id=BROKERS, ahead=st.integers(-1, 2))
    def claim(self, key: Any, broker_id: int, ahead: int) -> None:
        epoch = max(self.plain.partitions[key].epoch + ahead, 0)
        (found,) = claiming.claim_partitions(
            self.session, broker_id, self.epochs[broker_id], [(key, LeaderEpoch(epoch))]
        )
        assert isinstance(found, Claimed) == self.plain.claim(key, epoch, self.owner(broker_id))
        self.compare()

    def run_of(self, key: Any, epoch: int, base: int) -> Run:
        """The same for an epoch and an offset, always."""
        size = 1 + (epoch + base) % 3
        return run(key, base, base + size, epoch=epoch, stable=base + size if (epoch + base) % 4 else base)

    @rule(data=st.data(), broker_id=BROKERS)
    def commit(self, data: st.DataObject, broker_id: int) -> None:
        owner = self.owner(broker_id)
        ends = {key: one.end for key, one in self.plain.partitions.items()}
        gathers: list[Gather] = []
        for _ in range(data.draw(st.integers(1, 2))):
            runs = []
            for key in data.draw(st.sampled_from([[A], [B], [A, B]])):
                one = self.plain.partitions[key]
                epoch = max(0, one.epoch + data.draw(st.sampled_from([0, 0, 0, 0, -1, 1])))
                if one.writer is not None and epoch == one.epoch and one.writer != owner:
                    epoch += 1  # honest: only who claimed in an epoch writes in it
                base = max(0, ends[key] + data.draw(st.sampled_from([0, 0, 0, 0, -1, 1])))
                if base < one.end and (epoch, base) not in one.accepted:
                    base = one.end
                runs.append(self.run_of(key, epoch, base))
                ends[key] = runs[-1].end_offset
            is_known = bool(self.plain.pending_of(owner)) and data.draw(st.booleans())
            taken = {one.object_id for one in gathers}
            known = [id_ for id_ in self.plain.pending_of(owner) if id_ not in taken] if is_known else []
            gathers.append(gather(known[0] if known else self.new(owner, Level.L0), *runs))
        self.sent.append((owner, gathers))
        self.send(owner, gathers)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def commit_again(self, data: st.DataObject) -> None:
        """Its answer was lost; or it comes late, from somebody who is long dead."""
        owner, gathers = data.draw(st.sampled_from(self.sent))
        self.send(owner, gathers)

    def send(self, owner: Owner, gathers: list[Gather]) -> None:
        expected = self.plain.commit(owner, gathers)
        told = committing.commit_l0(self.session, owner, gathers, NOW_MS)
        assert told == expected
        self.compare()

    @rule(key=KEYS, offset=st.integers(0, 40), behind=st.integers(0, 1))
    def advance_start(self, key: Any, offset: int, behind: int) -> None:
        epoch = self.plain.partitions[key].epoch - behind
        told = trimming.advance_start(self.session, key, LeaderEpoch(epoch), offset)
        assert told.outcome is self.plain.advance_start(key, epoch, offset)
        self.compare()

    # Compactors

    @rule(data=st.data(), key=KEYS)
    def level(self, data: st.DataObject, key: Any) -> None:
        one = self.plain.partitions[key]
        ends = [extent.end for extent in one.extents if extent.end > one.leveled]
        if not ends:
            return
        base = one.leveled + data.draw(st.sampled_from([0, 0, 0, 1]))
        end = max(data.draw(st.sampled_from(ends)) + data.draw(st.sampled_from([0, 0, 0, 1])), base + 1)
        object_id = self.new(Owner.compactor(COMPACTOR), Level.L1)
        part = leveled(key, l1(base, end, object_id))
        written = [WrittenObject(object_id, 50)]
        expected = self.plain.level(key, base, end, object_id)
        owner = Owner.compactor(COMPACTOR)
        assert replacing.commit_level(self.session, owner, written, [part], NOW_MS) == [expected]
        self.compare()

    @rule(data=st.data(), key=KEYS)
    def plan(self, data: st.DataObject, key: Any) -> None:
        """A compaction is planned now, and committed some time later."""
        found = [one for one in read_tables(self.session).extents.get(key, ()) if one.level is Level.L1]
        if found:
            first = data.draw(st.integers(0, len(found) - 1))
            last = data.draw(st.integers(first, len(found) - 1))
            epoch = self.plain.partitions[key].compaction_epoch
            self.plans.append((key, epoch, found[first : last + 1]))

    @precondition(lambda self: self.plans)
    @rule(data=st.data(), is_merge=st.booleans())
    def compact(self, data: st.DataObject, is_merge: bool) -> None:
        key, epoch, inputs = data.draw(st.sampled_from(self.plans))
        owner = Owner.compactor(COMPACTOR)
        object_id = self.new(owner, Level.L1)
        output = l1(inputs[0].base_offset, inputs[-1].end_offset, object_id)
        bound = 0 if is_merge else output.end_offset
        change = Replacement(
            topic_id=key[0],
            partition=key[1],
            compaction_epoch=CompactionEpoch(epoch),
            settings_hash=hash_of_settings(SETTINGS),
            inputs=inputs,
            outputs=[output],
            bound=bound,
            horizon_ms=0,
        )
        spans = [(extent.base_offset, extent.end_offset) for extent in inputs]
        expected = self.plain.compact(key, epoch, spans, object_id, bound)
        (told,) = replacing.commit_compactions(self.session, owner, [WrittenObject(object_id, 50)], [change], NOW_MS)
        assert told is expected
        self.compare()

    def compare(self) -> None:
        tables = read_tables(self.session)
        found_wrong = [*violations(tables), *(step_violations(self.seen, tables) if self.seen else ())]
        assert not found_wrong, found_wrong
        self.seen = tables
        assert {id_: row.state for id_, row in tables.objects.items()} == self.plain.states
        for id_, row in tables.objects.items():
            assert row.state is not GARBAGE or row.round == self.plain.rounds[id_]
        for key, one in self.plain.partitions.items():
            row_ = tables.partitions[key]
            assert (one.start, one.end, one.stable) == (row_.start_offset, row_.end_offset, row_.stable_offset)
            assert (one.leveled, one.cleaned) == (row_.leveled_offset, row_.cleaned_offset)
            assert (one.epoch, one.compaction_epoch) == (row_.writer_epoch, row_.compaction_epoch)
            found = [(e.base_offset, e.end_offset, e.level, e.object_id) for e in tables.extents.get(key, ())]
            assert found == [(e.base, e.end, e.level, e.object_id) for e in one.extents]


CHECKS = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)


def test_in_process_the_tables_are_as_plain_python_has_them(is_soak: bool) -> None:
    examples = 1500 if is_soak else 40
    chosen = settings(
        max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=CHECKS, derandomize=True
    )
    run_state_machine_as_test(CloudMachine, settings=chosen)


@pytest.mark.postgres
def test_in_postgres_the_tables_are_as_plain_python_has_them(postgres: Postgres) -> None:
    class OnPostgres(CloudMachine):
        def new_url(self) -> str:
            return postgres.new_database()

    chosen = settings(
        max_examples=4, stateful_step_count=40, deadline=None, suppress_health_check=CHECKS, derandomize=True
    )
    run_state_machine_as_test(OnPostgres, settings=chosen)
