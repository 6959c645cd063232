"""Object stores by URL.

    folder        `file:///path`, for one machine or a shared file system: our own, because others do not flush
    remote        `s3://`, `gs://`, `az://`: through obstore
    urls          what a URL may say
    connecting    what obstore is told: options, timeouts, credentials

Opening makes no call: a broker starts without its store.
"""

from __future__ import annotations

from sexton import extras
from sexton.adapters.files import FileDisk
from sexton.adapters.objects.connecting import connect
from sexton.adapters.objects.folder import FolderStore
from sexton.adapters.objects.remote import RemoteStore, StoreTimeouts
from sexton.adapters.objects.urls import FolderUrl, RemoteUrl, StoreUrlError, parse
from sexton.ports.objects import ObjectStore

__all__ = ["StoreTimeouts", "StoreUrlError", "check_url", "open_store"]

FOLDER_THREADS = 32
"""Files of a folder that are read, written and flushed at once: above what a broker has in flight."""


def open_store(url: str, timeouts: StoreTimeouts | None = None) -> ObjectStore:
    """Raises as `check_url` does."""
    found = check_url(url)
    if isinstance(found, FolderUrl):
        disk = FileDisk(FOLDER_THREADS)
        return FolderStore(disk, found.path, disk.close)
    return RemoteStore(lambda times: connect(found, times), found.place, timeouts or StoreTimeouts())


def check_url(url: str) -> FolderUrl | RemoteUrl:
    """Raises StoreUrlError for a URL that makes no sense, MissingExtraError if obstore is needed and not installed."""
    found = parse(url)
    if isinstance(found, RemoteUrl):
        extras.need("cloud", f"a store at {found.scheme}://", ", or keep the objects in a folder: file:///path")
    return found
