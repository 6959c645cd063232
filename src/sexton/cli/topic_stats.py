"""`sexton topic stats`: what is in a topic of any cluster, counted by reading it as consumers do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sexton.cli import show
from sexton.cli.broker import UsageError
from sexton.cli.connect import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, CommandConfig, parse_bootstrap, parse_ids

if TYPE_CHECKING:
    from sexton.topics.finding import Reading, TopicClient
    from sexton.topics.sampling import Estimate
    from sexton.topics.stats import Amounts, PartitionStats, Sample, TopicStats

DEFAULT_RATE_MB: Final = 50
KEYS_A_PASS: Final = 5_033_164
"""What Kafka's cleaner can keep apart at once with its defaults: 90 % of log.cleaner.dedupe.buffer.size (128 MiB, of
one thread), 24 bytes a key."""
NOT_ALL_READ: Final = 3
"""Exit code."""

Rate = Annotated[float, typer.Option(min=0, metavar="MB/S", help="Read no faster from a broker; 0 for no limit.")]
Master = Annotated[str, typer.Option(help="The Spark cluster: local[*], spark://host:7077, yarn, ...")]


def stats(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[str | None, typer.Option(metavar="P,...", help="These partitions only.")] = None,
    sample: Annotated[
        str | None,
        typer.Option(metavar="5%", help="Read so much of each partition: records and bytes, with their error."),
    ] = None,
    sample_partitions: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Read N partitions, drawn at random: keys, too, with their error."),
    ] = None,
    show_keys: Annotated[
        bool, typer.Option("--show-keys", help="Name keys that are in more than one partition.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Show so many of them; all are counted.")] = 20,
    command_config: CommandConfig = None,
    rate: Rate = DEFAULT_RATE_MB,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "local[*]",
) -> None:
    """Count a topic's records and keys, and what compaction would save; tell how far it was compacted.

    Reads what read_committed consumers see, from the leaders. Exit code 3: not all partitions could be read.
    """
    wanted = _sample(sample, sample_partitions)
    from sexton.spark import session
    from sexton.topics.finding import TopicClient
    from sexton.topics.stats import collect

    connecting = connecting_to(bootstrap, command_config)
    with TopicClient(connecting) as client:
        log = client.topic(topic, None if partition is None else parse_ids(partition))
        spark = session.start("sexton topic stats", master)
        reading = reading_at(connecting, rate, spark.sparkContext)
        with show.spark_progress(spark.sparkContext, Console(stderr=True)) as progress:
            found = collect(
                spark.sparkContext,
                log,
                reading,
                sample=wanted,
                examples=limit if show_keys else 0,
                progress=progress,
            )
        keys = _keys_of(client, found) if show_keys else []
    if as_json:
        show.print_json(_json(found, keys))
    else:
        _print(found, keys)
    if any(each.failure is not None for each in found.partitions):
        raise typer.Exit(NOT_ALL_READ)


def connecting_to(bootstrap: str, command_config: Path | None) -> Any:
    from sexton.audit.live.connecting import Connecting
    from sexton.client.security.files import security_from
    from sexton.topics.finding import CLIENT_ID

    return Connecting(tuple(parse_bootstrap(bootstrap)), security_from(command_config), CLIENT_ID)


def reading_at(connecting: Any, rate_mb: float, context: Any) -> Reading:
    from sexton.audit.live.shared_pace import Limits
    from sexton.topics.finding import Reading

    rate = rate_mb * 1_000_000 if rate_mb else math.inf
    return Reading(connecting, Limits.of_job(rate, context.master, context.defaultParallelism))


def _sample(fraction: str | None, partitions: int | None) -> Sample | None:
    from sexton.topics.stats import Sample

    if fraction is None:
        return None if partitions is None else Sample(partition_count=partitions)
    if partitions is not None:
        raise UsageError("one sample is of offsets, the other of partitions", "--sample", "Say one of them")
    return Sample(fraction=parse_fraction(fraction))


def parse_fraction(text: str) -> float:
    """5%, or 0.05."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise UsageError(f"{text} is no part of a whole", "--sample", "Write 5%, or 0.05")
    return value


def _keys_of(client: TopicClient, found: TopicStats) -> list[bytes | None]:
    """The keys of the examples, in order; None for one whose records have gone meanwhile."""
    from sexton.topics.looking import records_at

    if found.shared is None:
        return []
    places = [(found.topic.name, at.partition, at.offset) for example in found.shared.examples for at in example]
    records = client.run(lambda inside: records_at(inside, places))
    return [
        next((key for at in example if (key := records.get((found.topic.name, at.partition, at.offset)))), None)
        for example in found.shared.examples
    ]


# ---- For people ----


def _print(found: TopicStats, keys: Sequence[bytes | None]) -> None:
    console = show.results(highlight=False)
    table = Table()
    names = (
        "partition",
        "records",
        "keys",
        "tombstones",
        "no key",
        "older of a key",
        "size",
        "would save",
        "compacted",
    )
    for name in names:
        table.add_column(name, justify="left" if name in ("partition", "compacted") else "right")
    for each in found.partitions:
        table.add_row(str(each.log.partition), *_cells(each.amounts, each.key_bounds), _cleaned(each))
    if found.total is not None and found.topic.partition_count > 1:
        is_all = len(found.topic.partitions) == found.topic.partition_count
        table.add_section()
        table.add_row("all" if is_all else "together", *_cells(found.total, None), "")
    console.print(table)
    for line in _lines(found, keys):
        console.print(line, soft_wrap=True)


def _cells(amounts: Amounts | None, bounds: tuple[float, float] | None) -> Iterator[str]:
    if amounts is None:
        yield from ["?"] * 7
        return
    yield number(amounts.record_count)
    yield number(amounts.key_count) if amounts.key_count is not None else _bounds(bounds)
    yield number(amounts.tombstone_count)
    yield number(amounts.keyless_count)
    yield _older(amounts)
    yield number(amounts.size_bytes, show.bytes_text)
    yield "?" if amounts.saved_bytes is None else _saved(amounts)


def number(estimate: Estimate, text: Callable[[int], str] = lambda count: f"{count:,}") -> str:
    """With what lies between it and the truth in 95 of 100 samples."""
    if estimate.is_exact:
        return text(estimate.rounded)
    if estimate.value == 0:
        return "none seen"
    if math.isinf(estimate.margin):
        return f"{text(estimate.rounded)} ± ?"
    return f"{text(estimate.rounded)} ± {text(round(estimate.margin))}"


def _bounds(bounds: tuple[float, float] | None) -> str:
    return "?" if bounds is None else f"{bounds[0]:,.0f} to {bounds[1]:,.0f}"


def _older(amounts: Amounts) -> str:
    if amounts.key_count is None:
        return "?"
    with_key = amounts.record_count.value - amounts.keyless_count.value
    older = max(0.0, with_key - amounts.key_count.value)
    return f"{older:,.0f} ({older / with_key if with_key else 0:.0%})"


def _saved(amounts: Amounts) -> str:
    saved, size = amounts.saved_bytes or 0.0, amounts.size_bytes.value + amounts.aborted_bytes.value
    return f"{show.bytes_text(round(saved))} ({saved / size if size else 0:.0%})"


def _cleaned(part: PartitionStats) -> str:
    if part.amounts is None:
        return "?"
    cleaned = part.cleaned
    if cleaned is None:
        return "no gap seen" if part.is_sampled else "never, as far as gaps tell"
    text = f"to {cleaned.up_to_offset:,} at least, {cleaned.kept_share:.0%} left"
    return text if cleaned.not_before_ms is None else f"{text}; after {show.time_text(cleaned.not_before_ms)}"


def _lines(found: TopicStats, keys: Sequence[bytes | None]) -> Iterator[str]:
    waiting = sum(each.waiting_count or 0 for each in found.partitions)
    aborted = sum(each.amounts.aborted_count.value for each in found.partitions if each.amounts is not None)
    if len(found.partitions) < len(found.topic.partitions):
        chosen = f"{len(found.partitions):,} of {len(found.topic.partitions):,} partitions were read"
        yield f"{chosen}; the last row is an estimate for all of them"
    if any(each.is_sampled for each in found.partitions):
        yield (
            "±: within it lies the truth, in 95 of 100 samples. Keys of a sample are bounds: "
            "to count them, read all, or --sample-partitions"
        )
    if aborted:
        yield f"{aborted:,.0f} records of aborted transactions are still there, which consumers do not see"
    if waiting:
        yield f"{waiting:,} records wait for an open transaction to end; they are not counted"
    crowded = [str(each.log.partition) for each in found.partitions if _key_count(each) > KEYS_A_PASS]
    if crowded:
        yield (
            f"[yellow]more keys than Kafka's cleaner takes in one pass with its defaults ({KEYS_A_PASS:,}):[/] "
            f"partition {', '.join(crowded)}"
        )
    if found.shared is not None:
        yield _shared_text(found)
        for key, example in zip(keys, found.shared.examples, strict=False):
            places = ", ".join(
                f"{at.partition} at {at.offset:,}{' (tombstone)' if at.is_tombstone else ''}" for at in example
            )
            yield f"  {escape(show.quoted(key, 80)) if key is not None else 'gone meanwhile'}: in partition {places}"
    if found.topic.is_compacted is False:
        yield "[yellow]its cleanup.policy is not compact:[/] what compaction would save is what it would, if it were"
    for each in found.partitions:
        for note in each.notes:
            yield f"[yellow]{escape(each.log.name)}:[/] {escape(note)}"
        if each.failure is not None:
            yield f"[red]{escape(each.log.name)}:[/] {escape(str(each.failure))}"


def _key_count(part: PartitionStats) -> float:
    """At least."""
    if part.key_bounds is not None:
        return part.key_bounds[0]
    return 0.0 if part.amounts is None or part.amounts.key_count is None else part.amounts.key_count.value


def _shared_text(found: TopicStats) -> str:
    shared = found.shared
    assert shared is not None, "asked before"
    among = "partition" if len(found.partitions) == found.topic.partition_count else "of these partitions"
    if not shared.key_count:
        return f"no key is in more than one {among}"
    return (
        f"[yellow]{shared.key_count:,} keys are in more than one {among}[/], {shared.live_count:,} of them with a "
        "value in each: compaction never replaces one by the other"
    )


# ---- For programs ----


def _json(found: TopicStats, keys: Sequence[bytes | None]) -> dict[str, Any]:
    shared = found.shared
    return {
        "topic": found.topic.name,
        "partition_count": found.topic.partition_count,
        "total": _amounts_json(found.total),
        "distinct_keys": _distinct(found),
        "keys_in_several_partitions": None
        if shared is None
        else {
            "keys": shared.key_count,
            "with_a_value_in_several": shared.live_count,
            "examples": [
                {"key": show.bytes_json(key), "places": [place._asdict() for place in example]}
                for key, example in zip(keys, shared.examples, strict=False)
            ],
        },
        "partitions": [_partition_json(each) for each in found.partitions],
        "read_bytes": found.read_bytes,
    }


def _distinct(found: TopicStats) -> int | None:
    """In the total a key counts in each partition that has it."""
    if found.shared is None or found.total is None or found.total.key_count is None:
        return None
    return found.total.key_count.rounded - found.shared.surplus_count


def _partition_json(part: PartitionStats) -> dict[str, Any]:
    cleaned = part.cleaned
    return {
        "partition": part.log.partition,
        "log_start_offset": part.log.log_start_offset,
        "last_stable_offset": part.log.last_stable_offset,
        "high_watermark": part.log.high_watermark,
        "disk_bytes": part.log.size_bytes,
        "is_sampled": part.is_sampled,
        **(_amounts_json(part.amounts) or {}),
        "key_bounds": None if part.key_bounds is None else [round(each) for each in part.key_bounds],
        "waiting_records": part.waiting_count,
        "compacted": None
        if cleaned is None
        else {
            "up_to_offset": cleaned.up_to_offset,
            "kept_share": cleaned.kept_share,
            "not_before_ms": cleaned.not_before_ms,
            "by_delete_horizons": cleaned.has_horizons,
        },
        "bytes_since_last_gap": None if part.dirty_bytes is None else round(part.dirty_bytes),
        "notes": list(part.notes),
        "error": None if part.failure is None else show.error_dict(part.failure),
    }


def _amounts_json(amounts: Amounts | None) -> dict[str, Any] | None:
    if amounts is None:
        return None
    named: Mapping[str, Estimate | None] = {
        "records": amounts.record_count,
        "keys": amounts.key_count,
        "deleted_keys": amounts.deleted_count,
        "tombstones": amounts.tombstone_count,
        "without_key": amounts.keyless_count,
        "size_bytes": amounts.size_bytes,
        "aborted_records": amounts.aborted_count,
        "markers": amounts.control_count,
    }
    saved, saved_bytes = amounts.saved_count, amounts.saved_bytes
    return {
        **{name: None if each is None else each.rounded for name, each in named.items()},
        "would_save": None
        if saved is None or saved_bytes is None
        else {"records": round(saved), "bytes": round(saved_bytes)},
        "margins": {
            name: None if math.isinf(each.margin) else round(each.margin)
            for name, each in named.items()
            if each is not None and not each.is_exact
        },
    }
