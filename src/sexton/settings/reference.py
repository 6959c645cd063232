"""Writes docs/settings.md from the declarations: `python -m sexton.settings.reference > docs/settings.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sexton.settings.broker import BROKER_SETTINGS
from sexton.settings.group import GROUP_DEFAULTS, GROUP_SETTINGS
from sexton.settings.layers import sorted_settings
from sexton.settings.schema import REQUIRED, Setting
from sexton.settings.topic import TOPIC_SETTINGS
from sexton.types import INT32_MAX, INT64_MAX

_HEAD = """# Settings

This page is written by `python -m sexton.settings.reference`; a test compares the two.

Names, kinds, ranges and defaults are Kafka 4.3's; what is Sexton's own is said. The value that counts is, the strongest
first, the one set on the topic or group, on the broker at run time, on all brokers at run time (`--entity-default` in
Kafka's tools), in the broker's file, and the default. A name that nobody knows is refused.

A file is a Java properties file, `name=value` on each line. Run-time changes are made with `kafka-configs`, any admin
client, or `sexton config`.
"""

_SEXTONS_OWN = frozenset(
    {
        "admin.listener",
        "flush.before.ack",
        "log.flush.before.ack",
        "cloud.cache.bytes.max",
        "cloud.delete.delay.ms",
        "cloud.downloads.max",
        "cloud.eager",
        "cloud.gc.round.ms",
        "cloud.get.timeout.ms",
        "cloud.hedge",
        "cloud.l0.bytes",
        "cloud.l0.partitions.max",
        "cloud.l1.bytes",
        "cloud.level.ms",
        "cloud.linger.ms",
        "cloud.pending.bytes.max",
        "cloud.put.timeout.ms",
        "cloud.scrub.age.ms",
        "cloud.scrub.interval.ms",
        "cloud.store.url",
        "cloud.uploads.max",
        "cloud.view.age.max.ms",
        "compaction.share",
        "compaction.share.max.bytes.per.second",
        "compaction.coordination",
        "log.cleaner.coordination",
        "default.storage.mode",
        "metastore.url",
        "storage.mode",
        "broker.lease.ms",
        "broker.lease.renew.ms",
        "metadata.poll.ms",
    }
)


def reference() -> str:
    topics = [setting for setting in sorted_settings(TOPIC_SETTINGS.values()) if not setting.is_broker_only]
    parts = [
        _HEAD,
        "## Topics\n",
        "All take effect at once. The last column is where a broker sets the default.\n",
        _table(topics, "broker's name", lambda setting: ", ".join(f"`{s.name}`" for s in setting.synonyms)),
        "## Brokers\n",
        _table(sorted_settings(BROKER_SETTINGS.values()), "change", lambda setting: setting.update.value),
        "## Groups\n",
        "For groups of the new consumer protocol. All take effect at once.\n",
        _table(
            sorted_settings(GROUP_SETTINGS.values()),
            "broker's name",
            lambda setting: f"`{GROUP_DEFAULTS[setting.name]}`",
        ),
    ]
    return "\n".join(parts)


def _table(settings: Iterable[Setting], last: str, last_of: Callable[[Setting], str]) -> str:
    lines = [f"| name | kind | default | values | {last} | |", "|---|---|---|---|---|---|"]
    for setting in settings:
        own = " Sexton's own." if setting.name in _SEXTONS_OWN else ""
        cells = (
            f"`{setting.name}`",
            setting.kind.name.lower(),
            _default_of(setting),
            setting.valid_values,
            last_of(setting),
            setting.doc + own,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _default_of(setting: Setting) -> str:
    if setting.default is REQUIRED:
        return "must be given"
    if setting.default in (INT64_MAX, INT32_MAX) and setting.default is not True:
        return "no limit"
    text = setting.text_of(setting.default)
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    print(reference(), end="")
