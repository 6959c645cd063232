"""`sexton cloud switch`: a local topic becomes a cloud topic while it is used. The setting does it; this asks first."""

from __future__ import annotations

from typing import Annotated

import typer

from sexton.cli import config, show
from sexton.cli.connect import DEFAULT_BOOTSTRAP, Bootstrap, confirm


def switch(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move a local topic into the store, while producers, consumers and open transactions go on. There is no way back.

    The same as `sexton config set --topic TOPIC storage.mode=cloud`.
    """
    from sexton.client.admin import Resource
    from sexton.ports.cloud import CLOUD, STORAGE_MODE

    confirm(f"Move {topic} into the store? There is no way back.", yes)
    config.change(bootstrap, Resource.TOPIC, topic, {STORAGE_MODE: CLOUD})
    show.results().print("Its leaders copy it now; `sexton cloud status` shows how far they are", highlight=False)
