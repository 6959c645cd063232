"""Where a cluster with cloud topics is: its folder, or its metastore and its store."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from sexton.cli.broker import UsageError

if TYPE_CHECKING:
    from sexton.ports.metastore import Metastore
    from sexton.ports.objects import ObjectStore

T = TypeVar("T")

Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The cluster's folder, as `sexton up` was told.")]
DEFAULT_DIRECTORY = Path("sexton-data")
MetastoreUrl = Annotated[
    str | None, typer.Option("--metastore", metavar="URL", help="The cluster's, if there is no folder.")
]
StoreUrl = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="Its cloud.store.url, if there is no folder.")
]


def with_cluster(
    directory: Path,
    metastore_url: str | None,
    store_url: str | None,
    work: Callable[[Metastore, ObjectStore, uuid.UUID], Awaitable[T]],
) -> T:
    from sexton.adapters.metastore import open_metastore
    from sexton.adapters.objects import open_store
    from sexton.cli.cluster_folder import ClusterFolder

    if metastore_url is None or store_url is None:
        known = ClusterFolder(directory).recall()
        if known is None:
            raise UsageError(
                "there is no cluster here", str(directory), "Name it with --dir, or --metastore and --store"
            )
        metastore_url, store_url = metastore_url or known.metastore_url, store_url or known.store_url
    _check_file(metastore_url)
    if not store_url:
        raise UsageError("this cluster has no store for cloud topics", str(directory), "Start it with --cloud")

    async def run() -> T:
        metastore = open_metastore(metastore_url)
        try:
            store = open_store(store_url)
            try:
                return await work(metastore, store, await metastore.find_cluster())
            finally:
                await store.close()
        finally:
            await metastore.close()

    return asyncio.run(run())


def _check_file(metastore_url: str) -> None:
    """SQLite would make a file that is not there, and find no cluster in it."""
    scheme, _, path = metastore_url.partition(":///")
    if scheme == "sqlite" and path and not Path(path).exists():
        raise UsageError("there is no such file", metastore_url, "Correct --metastore: sqlite:////absolute/path")
