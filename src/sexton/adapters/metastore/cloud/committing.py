"""L0 commits: what a leader has uploaded becomes the log, if it continues it.

The end offset is compared, and that alone keeps the log whole; the writer epoch is compared so that a leader that was
replaced learns of it. An object is committed once: it must be *pending*. Whoever asks again, because an answer was
lost, finds it live (or garbage, when leveling was quick), and is told what became of each run:

- *accepted*, if the partition's end has reached the run's end and the caller is still its writer: nobody else can have
  written there, and a leader never commits two things at one offset;
- if another has claimed since, accepted if the run's end lies at or below the start of the next epoch: at that claim
  the end was there already.

A gather whose object cannot be committed stops those behind it: they build on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import bindparam, delete, insert, select, tuple_, update

from sexton.adapters.metastore.cloud.objects import discard, make_live
from sexton.adapters.metastore.cloud.rows import (
    Values,
    among,
    chunks,
    insert_extents,
    lock_objects,
    lock_partitions,
    write_partitions,
)
from sexton.adapters.metastore.cloud_schema import aborted, cloud_partitions, epochs, extents, producer_deltas
from sexton.adapters.metastore.session import Session
from sexton.ports.cloud import (
    INLINE_BYTES_MAX,
    RUNS_MAX,
    Extent,
    Gather,
    Level,
    ObjectState,
    Outcome,
    Owner,
    Run,
)
from sexton.types import LeaderEpoch, PartitionId

_WRITTEN = ("end_offset", "stable_offset", "l0_bytes", "l0_extents_count", "l0_since_ms")
_SNAPSHOT = (
    update(cloud_partitions)
    .where(cloud_partitions.c.topic_id == bindparam("key_topic"))
    .where(cloud_partitions.c.partition == bindparam("key_partition"))
    .values(producers=bindparam("data"), producers_offset=bindparam("at"))
)
_FORGET_DELTAS = (
    delete(producer_deltas)
    .where(producer_deltas.c.topic_id == bindparam("key_topic"))
    .where(producer_deltas.c.partition == bindparam("key_partition"))
    .where(producer_deltas.c.end_offset <= bindparam("at"))
)


def commit_inline(session: Session, owner: Owner, runs: Sequence[Run], now_ms: int) -> list[Outcome]:
    (outcomes,) = commit_l0(session, owner, [Gather(object_id=None, size_bytes=0, runs=runs)], now_ms)
    return outcomes


def commit_l0(session: Session, owner: Owner, gathers: Sequence[Gather], now_ms: int) -> list[list[Outcome]]:
    for gather in gathers:
        _check_sense(gather)
    ids = [id_ for gather in gathers for id_ in (gather.object_id, *gather.released) if id_ is not None]
    if len(set(ids)) != len(ids) or sum(len(gather.runs) for gather in gathers) > RUNS_MAX:
        raise ValueError(f"an object twice in one commit, or more than {RUNS_MAX} runs")
    with session.writing_apart():
        rows = lock_partitions(session, (_key(run) for gather in gathers for run in gather.runs))
        commit = _Commit(session, rows, now_ms)
        found = lock_objects(session, ids)
        outcomes: list[list[Outcome]] = []
        is_lost = False
        for gather in gathers:
            if is_lost:
                outcomes.append([Outcome.SKIPPED] * len(gather.runs))
                continue
            row = found.get(gather.object_id) if gather.object_id is not None else None
            if row is not None and row.owner == owner and row.state is ObjectState.PENDING:
                told = [commit.take(run, gather) for run in gather.runs]
                sizes = [run.size_bytes for run, one in zip(gather.runs, told, strict=True) if one is Outcome.ACCEPTED]
                make_live(session, row, gather.size_bytes, sizes)
            elif gather.object_id is None:
                told = commit.take_or_judge(gather)
            else:
                told = commit.judge(gather)
            is_lost = Outcome.LOST in told
            outcomes.append(told)
            discard(session, (found[id_] for id_ in gather.released if id_ in found), owner)
        commit.write()
        return outcomes


def _key(run: Run) -> PartitionId:
    return run.topic_id, run.partition


def _check_sense(gather: Gather) -> None:
    """What no leader can mean, whatever is stored."""
    keys = [_key(run) for run in gather.runs]
    if not keys or len(set(keys)) != len(keys):
        raise ValueError("a gather holds each of its partitions once, and at least one")
    for run in gather.runs:
        place = f"partition {run.partition} of topic {run.topic_id} at {run.base_offset}"
        if not (0 <= run.base_offset < run.end_offset and 0 <= run.stable_offset <= run.end_offset):
            raise ValueError(f"{place}: ends at {run.end_offset}, and is stable up to {run.stable_offset}")
        if run.size_bytes <= 0 or run.position < 0 or run.records_count < 0:
            raise ValueError(f"{place}: {run.size_bytes} bytes at {run.position}")
        if gather.object_id is None:
            if run.inline is None or len(run.inline) != run.size_bytes or run.size_bytes > INLINE_BYTES_MAX:
                raise ValueError(f"{place}: inline, and its bytes are not there, or too many")
        elif run.inline is not None or run.position + run.size_bytes > gather.size_bytes:
            raise ValueError(f"{place}: lies outside its object, which has {gather.size_bytes} bytes")
        if run.snapshot is not None and run.snapshot.offset > run.end_offset:
            raise ValueError(f"{place}: a snapshot of producers at {run.snapshot.offset}, beyond the run")
        if any(not run.base_offset <= one.marker_offset < run.end_offset for one in run.aborted):
            raise ValueError(f"{place}: a transaction is aborted by a marker outside the run")


class _Commit:
    """What one transaction has decided so far, and will write at its end in a few statements."""

    def __init__(self, session: Session, rows: dict[PartitionId, Values], now_ms: int) -> None:
        self._session = session
        self._rows = rows
        self._now_ms = now_ms
        self._refused: dict[PartitionId, Outcome] = {}
        """A partition of which something was refused takes nothing that comes behind it."""
        self._accepted: list[tuple[PartitionId, Run, Extent]] = []

    def take(self, run: Run, gather: Gather) -> Outcome:
        """Commits the run, if it continues what is there."""
        key = _key(run)
        outcome = self._refused.get(key) or self._fits(self._rows.get(key), run)
        if outcome is not Outcome.ACCEPTED:
            self._refused[key] = outcome
            return outcome
        row = self._rows[key]
        row["end_offset"] = run.end_offset
        row["stable_offset"] = max(row["stable_offset"], run.stable_offset)
        if run.snapshot is not None:
            row["producers_offset"] = run.snapshot.offset
        row["l0_bytes"] += run.size_bytes
        row["l0_since_ms"] = row["l0_since_ms"] if row["l0_extents_count"] else self._now_ms
        row["l0_extents_count"] += 1
        extent = Extent(
            base_offset=run.base_offset,
            end_offset=run.end_offset,
            level=Level.L0,
            object_id=gather.object_id,
            position=run.position,
            size_bytes=run.size_bytes,
            first_timestamp_ms=run.first_timestamp_ms,
            max_timestamp_ms=run.max_timestamp_ms,
            records_count=run.records_count,
            inline=run.inline,
        )
        self._accepted.append((key, run, extent))
        return Outcome.ACCEPTED

    @staticmethod
    def _fits(row: Values | None, run: Run) -> Outcome:
        if row is None:
            return Outcome.GONE
        if row["writer_epoch"] != run.writer_epoch:
            return Outcome.FENCED
        if row["end_offset"] != run.base_offset:
            return Outcome.MISPLACED
        if run.snapshot is not None and run.snapshot.offset < row["producers_offset"]:
            return Outcome.MISPLACED
        return Outcome.ACCEPTED

    def take_or_judge(self, gather: Gather) -> list[Outcome]:
        """Markers have no object that says whether they were committed: what does not continue the log may be in it
        already."""
        told = [self.take(run, gather) for run in gather.runs]
        asked = [run for run, one in zip(gather.runs, told, strict=True) if one is not Outcome.ACCEPTED]
        if not asked:
            return told
        judged = dict(zip(map(_key, asked), self._judge(gather, asked), strict=True))
        for key, outcome in judged.items():
            if outcome is Outcome.ACCEPTED:
                self._refused.pop(key, None)
        again = [judged.get(_key(run), Outcome.ACCEPTED) for run in gather.runs]
        return [Outcome.MISPLACED if one is Outcome.LOST else one for one in again]

    def judge(self, gather: Gather) -> list[Outcome]:
        """For an object that is not pending: what has become of its runs."""
        told = self._judge(gather, gather.runs)
        for run, outcome in zip(gather.runs, told, strict=True):
            if outcome is not Outcome.ACCEPTED:
                self._refused[_key(run)] = outcome
        return told

    def _judge(self, gather: Gather, runs: Sequence[Run]) -> list[Outcome]:
        next_starts = self._next_epochs(run for run in runs if self._is_after_a_claim(run))
        told = [self._reached(run, next_starts) for run in runs]
        reached = [run for run, outcome in zip(runs, told, strict=True) if outcome is Outcome.ACCEPTED]
        strangers = self._strangers(gather, reached)
        return [
            self._refusal(run) if outcome is Outcome.ACCEPTED and _key(run) in strangers else outcome
            for run, outcome in zip(runs, told, strict=True)
        ]

    def _refusal(self, run: Run) -> Outcome:
        """Of a run at whose base another one lies. Its writer may never have claimed the epoch that it names."""
        return Outcome.FENCED if self._is_after_a_claim(run) else Outcome.MISPLACED

    def _is_after_a_claim(self, run: Run) -> bool:
        row = self._rows.get(_key(run))
        return row is not None and row["writer_epoch"] > run.writer_epoch

    def _reached(self, run: Run, next_starts: dict[PartitionId, int]) -> Outcome:
        row = self._rows.get(_key(run))
        if row is None:
            return Outcome.GONE
        if row["writer_epoch"] == run.writer_epoch:
            if row["end_offset"] >= run.end_offset:
                return Outcome.ACCEPTED
            return Outcome.LOST if row["end_offset"] == run.base_offset else Outcome.MISPLACED
        return Outcome.ACCEPTED if run.end_offset <= next_starts.get(_key(run), -1) else Outcome.FENCED

    def _next_epochs(self, runs: Iterable[Run]) -> dict[PartitionId, int]:
        """Where the epoch began that came after the run's, by partition."""
        asked: dict[PartitionId, LeaderEpoch] = {_key(run): run.writer_epoch for run in runs}
        starts: dict[PartitionId, list[tuple[int, int]]] = defaultdict(list)
        for keys in chunks(list(asked)):
            columns = (epochs.c.topic_id, epochs.c.partition, epochs.c.leader_epoch, epochs.c.start_offset)
            for topic_id, index, epoch, start in self._session.execute(select(*columns).where(among(epochs, keys))):
                if epoch > asked[topic_id, index]:
                    starts[topic_id, index].append((epoch, start))
        return {key: min(found)[1] for key, found in starts.items()}

    def _strangers(self, gather: Gather, runs: Sequence[Run]) -> set[PartitionId]:
        """Partitions where another L0 extent lies at the run's base: then it is not this run that was committed."""
        mine = {(*_key(run), run.base_offset): run for run in runs}
        found: set[PartitionId] = set()
        for keys in chunks(list(mine)):
            c = extents.c
            query = select(c.topic_id, c.partition, c.base_offset, c.end_offset, c.object_id, c.inline)
            query = query.where(tuple_(c.topic_id, c.partition, c.base_offset).in_(keys), c.level == int(Level.L0))
            for topic_id, index, base, end, object_id, inline in self._session.execute(query):
                run = mine[topic_id, index, base]
                if (end, object_id, inline) != (run.end_offset, gather.object_id, run.inline):
                    found.add((topic_id, index))
        return found

    def write(self) -> None:
        session = self._session
        changed = {key: self._rows[key] for key, _, _ in self._accepted}
        insert_extents(session, ((key, extent) for key, _, extent in self._accepted))
        write_partitions(session, [changed[key] for key in sorted(changed)], _WRITTEN)
        deltas = [
            {"topic_id": key[0], "partition": key[1], "end_offset": run.end_offset, "batches": run.delta}
            for key, run, _ in self._accepted
            if run.delta
        ]
        if deltas:
            session.execute(insert(producer_deltas), deltas)
        ended = [
            {"topic_id": key[0], "partition": key[1], **one._asdict()}
            for key, run, _ in self._accepted
            for one in run.aborted
        ]
        if ended:
            session.execute(insert(aborted), ended)
        last = {key: run.snapshot for key, run, _ in self._accepted if run.snapshot is not None}
        if last:
            keys = [{"key_topic": key[0], "key_partition": key[1], "at": one.offset} for key, one in last.items()]
            session.execute(_FORGET_DELTAS, keys)
            data = [{**key, "data": one.data} for key, one in zip(keys, last.values(), strict=True)]
            session.execute(_SNAPSHOT, data)
