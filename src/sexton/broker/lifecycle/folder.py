"""The broker's log directory: which broker and cluster own it (meta.properties), and how the last process left it."""

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
    """The log directory belongs to another broker or another cluster. Using it would mix two histories."""

    exit_code = 78


class Past(Enum):
    """Whether a log directory has everything that its broker has acknowledged."""

    WHOLE = "whole"
    OLD = "old"
    """An old image: a later process has used this very directory."""
    LOST = "lost"
    """Another directory than the broker had, or a new one with which no process has updated the metastore yet."""


@dataclass(frozen=True, slots=True)
class Start:
    """Written into the log directory by a process before it registers. If it dies before it can mark the directory as
    its own (`mark_epoch`), the next process knows by this that no other one has used the directory since."""

    id: str
    past: Past
    """What the process found the directory to be."""
    former_epoch: int
    """Broker epoch of the registration by which `past` was found; NOBODY if there was none."""

    def encode(self) -> bytes:
        return f"{self.id} {self.past.value} {self.former_epoch}\n".encode()

    @classmethod
    def decode(cls, content: bytes) -> Start | None:
        """Returns None if the content cannot be parsed."""
        try:
            id_, past, former_epoch = content.decode().split()
            return cls(id_, Past(past), int(former_epoch))
        except ValueError:
            return None

    def is_last_before(self, registered: BrokerRow) -> bool:
        """Whether the process that wrote this made that registration, or saw it and made none itself."""
        return registered.start_id == self.id or registered.epoch == self.former_epoch


@dataclass(frozen=True, slots=True)
class Folder:
    path: str
    data_id: uuid.UUID
    stopped_cleanly: bool
    broker_epoch: int | None = None
    """Broker epoch of the last process that completed its start with this directory, or NOBODY; None if unknown."""

    is_in_use: bool = False
    """Whether this very process has the directory in use and registers again: it has lost nothing."""

    start: Start | None = None
    """Written by the last process that was about to register."""

    def past(self, former: BrokerRow | None) -> Past:
        """Compares the directory with the last registration before this process's own."""
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
    """Creates the directory unless it exists. Flushes its parents, so that it survives a crash before any record in it
    is acknowledged."""
    missing: list[str] = []
    while path not in ("", "/") and not disk.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        disk.make_directory(each)
        await disk.flush_directory(os.path.dirname(each))


async def open_folder(disk: Disk, path: str, broker_id: int, cluster_id: uuid.UUID, rng: random.Random) -> Folder:
    """The caller must have locked the directory. The mark of a clean stop is removed before this returns: from here on
    only `mark_clean` writes one."""
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
    """Written before the broker becomes ACTIVE, and after its rows say what its logs lack: an older epoch here than in
    the metastore means that the disk went back in time."""
    await disk.replace_file(f"{path}/{BROKER_EPOCH_FILE}", f"{broker_epoch}\n".encode())


async def mark_clean(disk: Disk, path: str, broker_epoch: int) -> None:
    content = checkpoints.encode_clean_shutdown(broker_epoch)
    await disk.replace_file(f"{path}/{CLEAN_SHUTDOWN_FILE}", content)
