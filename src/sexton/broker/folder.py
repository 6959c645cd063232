"""The broker's data folder: whose it is (meta.properties), and how its last owner left it."""

from __future__ import annotations

import os.path
import random
import uuid
from dataclasses import dataclass
from enum import Enum

from sexton.errors import SextonError
from sexton.ports.disk import Disk
from sexton.ports.metastore import BrokerRow
from sexton.records import checkpoints
from sexton.records.names import CLEAN_SHUTDOWN_FILE

BROKER_EPOCH_FILE = "broker-epoch"
START_FILE = "broker-start"
NOBODY = -1


class ForeignFolderError(SextonError):
    """The folder belongs to another broker or another cluster. Using it would mix two histories."""

    exit_code = 78


class Past(Enum):
    """What a folder lacks of what its broker has acknowledged."""

    WHOLE = "whole"
    OLD = "old"
    """An image of another day: a later process has used this very folder."""
    LOST = "lost"
    """Another folder than the broker had, or a new one with which no process has yet told the cluster so."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a process writes down before it registers. If it dies before it can mark the folder as its own, the next one
    knows by this that nobody has used the folder since."""

    id: str
    past: Past
    """What the process found the folder to be."""
    former_epoch: int
    """By the registration with this broker epoch; NOBODY if there was none."""

    def encode(self) -> bytes:
        return f"{self.id} {self.past.value} {self.former_epoch}\n".encode()

    @classmethod
    def decode(cls, content: bytes) -> Start | None:
        """None if it says nothing that we know."""
        try:
            id_, past, former_epoch = content.decode().split()
            return cls(id_, Past(past), int(former_epoch))
        except ValueError:
            return None

    def is_last_before(self, registered: BrokerRow) -> bool:
        """Whether this is who made that registration, or who has seen it and made none."""
        return registered.start_id == self.id or registered.epoch == self.former_epoch


@dataclass(frozen=True, slots=True)
class Folder:
    path: str
    data_id: uuid.UUID
    stopped_cleanly: bool
    broker_epoch: int | None = None
    """Of the last process that took its place in the cluster with this folder, or NOBODY; None if that is unknown."""

    is_in_use: bool = False
    """By this very process, which registers anew: it has lost nothing."""

    start: Start | None = None
    """Of the last process that was about to register."""

    def past(self, former: BrokerRow | None) -> Past:
        """Compared with the last registration before this process's own."""
        if former is None or self.is_in_use:
            return Past.WHOLE
        if former.data_id != self.data_id or self.broker_epoch == NOBODY:
            return Past.LOST
        if self.broker_epoch is None or self.broker_epoch >= former.epoch:
            return Past.WHOLE
        if self.start is not None and self.start.is_last_before(former):
            return self.start.past
        return Past.OLD


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
        await mark_epoch(disk, path, NOBODY)
        await disk.replace_file(meta_path, checkpoints.encode_meta_properties(meta))
        return Folder(path, data_id, stopped_cleanly=False, broker_epoch=NOBODY)
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
    return Folder(path, meta.directory_id, stopped_cleanly, _broker_epoch(disk, path), start=_start(disk, path))


def _broker_epoch(disk: Disk, path: str) -> int | None:
    content = disk.read_file(f"{path}/{BROKER_EPOCH_FILE}")
    try:
        return None if content is None else int(content)
    except ValueError:
        return None


def _start(disk: Disk, path: str) -> Start | None:
    content = disk.read_file(f"{path}/{START_FILE}")
    return None if content is None else Start.decode(content)


async def mark_start(disk: Disk, path: str, start: Start) -> None:
    await disk.replace_file(f"{path}/{START_FILE}", start.encode())


async def mark_epoch(disk: Disk, path: str, broker_epoch: int) -> None:
    """Before the broker becomes active, and after its rows tell what its logs lack: whoever reads an older epoch here
    than the metastore has knows that the disk went back in time."""
    await disk.replace_file(f"{path}/{BROKER_EPOCH_FILE}", f"{broker_epoch}\n".encode())


async def mark_clean(disk: Disk, path: str, broker_epoch: int) -> None:
    content = checkpoints.encode_clean_shutdown(broker_epoch)
    await disk.replace_file(f"{path}/{CLEAN_SHUTDOWN_FILE}", content)
