"""`sexton config`: settings of topics, brokers, the whole cluster and groups, changed while it runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sexton.cli import show
from sexton.cli.broker import UsageError
from sexton.cli.connect import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, with_client
from sexton.settings.properties import parse_settings

if TYPE_CHECKING:
    from sexton.client.admin import Resource, Setting
    from sexton.client.client import Client

app = typer.Typer(help="Show and change settings of topics, brokers and groups.", no_args_is_help=True)

Topic = Annotated[str | None, typer.Option("--topic", "-t", metavar="NAME", help="Of a topic.")]
BrokerId = Annotated[int | None, typer.Option("--broker", min=0, metavar="ID", help="Of one broker.")]
OfCluster = Annotated[bool, typer.Option("--cluster", help="Of all brokers: the cluster's default.")]
Group = Annotated[str | None, typer.Option("--group", "-g", metavar="NAME", help="Of a consumer group.")]


def _target(topic: str | None, broker: int | None, cluster: bool, group: str | None) -> tuple[Resource, str]:
    from sexton.client.admin import Resource

    given: list[tuple[Resource, str]] = []
    if topic is not None:
        given.append((Resource.TOPIC, topic))
    if broker is not None:
        given.append((Resource.BROKER, str(broker)))
    if cluster:
        given.append((Resource.BROKER, ""))
    if group is not None:
        given.append((Resource.GROUP, group))
    if len(given) != 1:
        raise UsageError("whose settings?", "", "Give one of --topic NAME, --broker ID, --cluster, --group NAME")
    return given[0]


def _settings(bootstrap: str, resource: Resource, name: str) -> list[Setting]:
    async def work(client: Client) -> list[Setting]:
        from sexton.client.admin import Admin

        return await Admin(client).settings(resource, name)

    return with_client(bootstrap, work)


@app.command("list")
def list_settings(
    topic: Topic = None,
    broker: BrokerId = None,
    cluster: OfCluster = False,
    group: Group = None,
    everything: Annotated[bool, typer.Option("--all", help="Defaults too, with what they mean.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show what is set, or with --all everything that can be."""
    from sexton.settings.layers import ConfigSource

    resource, name = _target(topic, broker, cluster, group)
    defaults = (ConfigSource.DEFAULT, ConfigSource.UNKNOWN)
    settings = [each for each in _settings(bootstrap, resource, name) if everything or each.source not in defaults]
    if as_json:
        show.print_json([_json(each) for each in settings])
        return
    if not settings:
        Console(stderr=True).print("Nothing is set: the defaults hold. --all shows them")
        return
    table = Table("setting", "value", "set on", *(["meaning"] if everything else []))
    for each in settings:
        value = "(hidden)" if each.is_sensitive else each.value if each.value is not None else "-"
        source = each.source.name.lower() + (", fixed" if each.is_read_only else "")
        table.add_row(
            escape(each.name), escape(value), source, *([escape(each.documentation or "")] if everything else [])
        )
    show.results().print(table)


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="SETTING")],
    topic: Topic = None,
    broker: BrokerId = None,
    cluster: OfCluster = False,
    group: Group = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print one setting's value."""
    resource, owner = _target(topic, broker, cluster, group)
    found = {each.name: each for each in _settings(bootstrap, resource, owner)}
    if name not in found:
        close = ", ".join(each for each in found if name.lower() in each or each in name)[:200]
        raise UsageError(f"there is no setting {name}", "", f"Did you mean {close}?" if close else "See config list")
    if as_json:
        show.print_json(_json(found[name]))
    else:
        sys.stdout.write(f"{found[name].value if found[name].value is not None else ''}\n")


@app.command("set")
def set_settings(
    changes: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...")],
    topic: Topic = None,
    broker: BrokerId = None,
    cluster: OfCluster = False,
    group: Group = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change settings. Every broker goes by them within a fraction of a second."""
    resource, owner = _target(topic, broker, cluster, group)
    change(bootstrap, resource, owner, dict(parse_settings(changes)))


@app.command()
def unset(
    names: Annotated[list[str], typer.Argument(metavar="SETTING...")],
    topic: Topic = None,
    broker: BrokerId = None,
    cluster: OfCluster = False,
    group: Group = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Take settings away, so that the defaults hold again."""
    resource, owner = _target(topic, broker, cluster, group)
    change(bootstrap, resource, owner, dict.fromkeys(names))


def change(bootstrap: str, resource: Resource, owner: str, changes: dict[str, str | None]) -> None:
    """Changes settings, and says so."""

    async def work(client: Client) -> None:
        from sexton.client.admin import Admin

        await Admin(client).change_settings(resource, owner, changes)

    with_client(bootstrap, work)
    for name, value in changes.items():
        text = f"{name} is unset" if value is None else f"{name} = {value}"
        show.results(highlight=False).print(f"{escape(owner) or 'cluster'}: {escape(text)}")


def _json(each: Setting) -> dict[str, object]:
    return {
        "name": each.name,
        "value": each.value,
        "source": each.source.name.lower(),
        "read_only": each.is_read_only,
        "sensitive": each.is_sensitive,
    }
