"""A client's security from the file that Kafka's own tools take (`--command-config`)."""

from __future__ import annotations

from pathlib import Path

from sexton.client.security.errors import BadSecurityError
from sexton.client.security.properties import OPEN, Security, security_of
from sexton.settings.properties import parse_properties


def security_from(command_config: Path | None) -> Security:
    """Without a file the cluster is taken to be open. Raises BadSecurityError."""
    if command_config is None:
        return OPEN
    try:
        text = command_config.read_text()
    except (OSError, UnicodeDecodeError) as error:
        what = f"it cannot be read: {getattr(error, 'strerror', None) or error}"
        raise BadSecurityError(what, str(command_config), "Name a file of properties, as Kafka's tools take") from None
    return security_of(parse_properties(text), lambda path: Path(path).read_bytes())
