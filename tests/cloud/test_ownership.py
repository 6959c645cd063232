"""A broker puts nothing into a store that is not its cluster's, and claims nothing while it may not use it."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from sexton.adapters.clock import SystemClock
from sexton.cloud import claims
from sexton.cloud.metered import CloudStats
from sexton.cloud.ownership import OwnStore
from sexton.ports.object_names import MARKER_KEY, claim_store
from sexton.ports.objects import StoreRefusedError, StoreUnavailableError
from tests.cloud.test_replica import Broker
from tests.cloud.worlds import CLUSTER, MemoryStore, away, make_world, until

OTHER = uuid.UUID(int=0xAA)


def own(store: MemoryStore) -> OwnStore:
    return OwnStore(store, CloudStats(), SystemClock(), lambda: CLUSTER)


def test_nothing_is_put_where_the_marker_is_missing_or_anothers() -> None:
    async def go() -> None:
        store = MemoryStore()
        refused = own(store)
        with pytest.raises(StoreRefusedError, match=r"cloud\.store\.url.*sexton cloud adopt"):
            await refused.put("l0/x", b"x")
        assert refused.refusal is not None
        await claim_store(store, OTHER)
        with pytest.raises(StoreRefusedError, match=f"belongs to cluster {OTHER}"):
            await refused.put("l0/x", b"x")
        assert list(store.objects) == [MARKER_KEY]
        del store.objects[MARKER_KEY]
        await claim_store(store, CLUSTER)
        await refused.put("l0/x", b"x")
        assert refused.refusal is None
        assert store.objects["l0/x"] == b"x"

    asyncio.run(go())


def test_the_marker_is_read_once_and_a_store_that_does_not_answer_is_no_verdict() -> None:
    async def go() -> None:
        store = MemoryStore()
        await claim_store(store, CLUSTER)
        ours, reads = own(store), []
        read = store.read_marker

        async def silent(key: str) -> bytes | None:
            reads.append(key)
            raise StoreUnavailableError("away", key)

        store.read_marker = silent  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailableError):
            await ours.put("l0/x", b"x")
        assert ours.refusal is None

        async def counted(key: str) -> bytes | None:
            reads.append(key)
            return await read(key)

        store.read_marker = counted  # type: ignore[method-assign]
        await asyncio.gather(*(ours.put(f"l0/{number}", b"x") for number in range(5)))
        assert len(reads) == 2

    asyncio.run(go())


def test_a_broker_that_may_not_use_the_store_claims_nothing_until_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "pause_ms", lambda *_: 1)

    async def go() -> None:
        world, store = await make_world(), MemoryStore()
        broker = Broker(world, 1, store)
        checks: list[bool] = []

        async def refuse() -> None:
            checks.append(True)
            raise StoreRefusedError("not ours", store.place)

        broker.host.check_store = refuse  # type: ignore[method-assign]
        leading = asyncio.ensure_future(broker.lead())
        await until(lambda: len(checks) > 2)
        assert not broker.replica.is_leader
        assert "claim_partitions" not in broker.host.metastore.calls

        async def silent() -> None:
            await away("get", MARKER_KEY)

        broker.host.check_store = silent  # type: ignore[method-assign]
        await leading
        assert broker.replica.is_leader, "what is needed to lead is in the metastore"
        await broker.stop()

    asyncio.run(go())
