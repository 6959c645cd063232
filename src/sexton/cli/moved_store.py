"""`sexton up --cloud` with another address than before: topics stay where they are, so it must be their store."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from sexton.cli.cluster_folder import ClusterFolderError

if TYPE_CHECKING:
    from sexton.cli.cluster_folder import Cluster


def check_store(before: Cluster | None, now: Cluster) -> None:
    """Tells before anything is started, or remembered, what brokers would log and wait for. What nobody knows now, the
    brokers find out. Raises ClusterFolderError, StoreRefusedError."""
    if before is None or not before.store_url or before.store_url == now.store_url:
        return
    if not asyncio.run(_is_right(now)):
        raise ClusterFolderError(
            f"the cloud topics of this cluster are in {before.store_url}, and this is not their store",
            now.store_url,
            "Leave --cloud out. To move them, stop the cluster and copy all objects there, sexton.json last",
        )


async def _is_right(now: Cluster) -> bool:
    from sexton.adapters.metastore import open_metastore
    from sexton.adapters.objects import open_store
    from sexton.ports.metastore import MetastoreUnavailableError
    from sexton.ports.object_names import is_claimed
    from sexton.ports.objects import StoreUnavailableError

    metastore, store = open_metastore(now.metastore_url), open_store(now.store_url)
    try:
        with suppress(MetastoreUnavailableError, StoreUnavailableError):
            cluster_id = await metastore.find_cluster()
            return not await metastore.read_cloud_partitions() or await is_claimed(store, cluster_id)
        return True
    finally:
        await store.close()
        await metastore.close()
