"""Others' programs come as archives."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, directory: Path, prefix: str = "") -> None:
    """What begins with `prefix`. Names that lead out of the directory are refused where Python can: from 3.11.4 on,
    which Debian 12's is not."""
    with tarfile.open(archive) as content:
        members = [member for member in content.getmembers() if member.name.startswith(prefix)]
        if hasattr(tarfile, "data_filter"):
            content.extractall(directory, members, filter="data")
        else:
            content.extractall(directory, members)
