"""The broker's data folder: whose it is (meta.properties), and how its last owner left it."""

from __future__ import annotations

import os.path
import random
import uuid
from dataclasses import dataclass

from sexton.errors import SextonError
from sexton.ports.disk import Disk
from sexton.records import checkpoints
from sexton.records.names import CLEAN_SHUTDOWN_FILE


class ForeignFolderError(SextonError):
    """The folder belongs to another broker or another cluster. Using it would mix two histories."""

    exit_code = 78


@dataclass(frozen=True, slots=True)
class Folder:
    path: str
    data_id: uuid.UUID
    stopped_cleanly: bool


async def make_folder(disk: Disk, path: str) -> None:
    """Makes it unless it is there. Its name survives a crash before anything is acknowledged that lies in it."""
    missing: list[str] = []
    while path not in ("", "/") and not disk.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        disk.make_directory(each)
        await disk.flush_directory(os.path.dirname(each))


async def open_folder(disk: Disk, path: str, broker_id: int, cluster_id: uuid.UUID, rng: random.Random) -> Folder:
    """The folder must be locked by the caller. The mark of a clean stop is gone when this returns: from here on only
    `mark_clean` makes one."""
    meta_path = f"{path}/{checkpoints.META_PROPERTIES}"
    mark_path = f"{path}/{CLEAN_SHUTDOWN_FILE}"
    content = disk.read_file(meta_path)
    if content is None:
        data_id = uuid.UUID(int=rng.getrandbits(128), version=4)
        meta = checkpoints.MetaProperties(checkpoints.format_uuid(cluster_id), broker_id, data_id)
        await disk.replace_file(meta_path, checkpoints.encode_meta_properties(meta))
        return Folder(path, data_id, stopped_cleanly=False)
    meta = checkpoints.decode_meta_properties(content, meta_path)
    if meta.cluster_id != checkpoints.format_uuid(cluster_id):
        raise ForeignFolderError(
            f"this folder belongs to cluster {meta.cluster_id}, the metastore is cluster "
            f"{checkpoints.format_uuid(cluster_id)}'s",
            meta_path,
            "Point log.dirs or metastore.url to the right place. Nothing was changed.",
        )
    if meta.node_id != broker_id:
        raise ForeignFolderError(
            f"this folder belongs to broker {meta.node_id}, not to broker {broker_id}",
            meta_path,
            "Give each broker its own log.dirs, or correct node.id. Nothing was changed.",
        )
    if meta.directory_id is None:
        raise ForeignFolderError(
            "it names no directory.id", meta_path, "Was it written by Kafka before 3.7? Start anew."
        )
    stopped_cleanly = disk.exists(mark_path)
    if stopped_cleanly:
        disk.remove(mark_path)
        await disk.flush_directory(path)
    return Folder(path, meta.directory_id, stopped_cleanly)


async def mark_clean(disk: Disk, path: str, broker_epoch: int) -> None:
    content = checkpoints.encode_clean_shutdown(broker_epoch)
    await disk.replace_file(f"{path}/{CLEAN_SHUTDOWN_FILE}", content)
