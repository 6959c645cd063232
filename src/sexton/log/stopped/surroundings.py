"""What must be known about a stopped broker's partition before it is changed, and is not in its directory.

A partition's directory does not say which broker it belongs to, its topic's configs, which brokers have other replicas,
or whether it is being moved. The log directory does (`meta.properties`, `__cluster_metadata-0`), with the broker's
other log directories, and what an operator adds: `server.properties`, or a directory that has the metadata.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from sexton.compaction.watermarks.checkpoint import WATERMARKS_FILE
from sexton.errors import LogInUseError, NotALogError, SextonError
from sexton.log.stopped.kraft_metadata import ClusterMetadata, read_metadata
from sexton.records import checkpoints, names
from sexton.records.checkpoints import MetaProperties
from sexton.settings.schema import BadSettingError
from sexton.settings.topic import TopicConfig, topic_names

SEXTON_FILES: Final = (names.INCARNATION_FILE, WATERMARKS_FILE)
"""Files in a partition's directory that only a Sexton broker's replica has."""

LOG_DIRS: Final = ("log.dirs", "log.dir")


class SextonReplicaError(SextonError):
    """The log belongs to a Sexton broker: the cluster compacts it, and it must not be compacted from outside."""

    exit_code: ClassVar[int] = 64


def is_sextons(directory: Path) -> bool:
    return any((directory / name).exists() for name in SEXTON_FILES)


@dataclass(frozen=True, slots=True)
class KnownConfig:
    """A topic's configs, and what had to be assumed."""

    config: TopicConfig
    assumptions: tuple[str, ...]


@dataclass(slots=True)
class Surroundings:
    """What is known in one run. Each file is read once."""

    log_dirs: frozenset[Path]
    """Log directories of the partitions that were named."""
    metadata_dir: Path | None = None
    server_properties: Mapping[str, str] | None = None
    """Texts by name, of the broker that these directories belong to."""
    _metadata: dict[Path, ClusterMetadata | None] = field(default_factory=dict)
    _identities: dict[Path, MetaProperties | None] = field(default_factory=dict)

    # ---- which broker it belongs to ----

    def broker(self, log_dir: Path) -> MetaProperties | None:
        if log_dir not in self._identities:
            self._identities[log_dir] = checkpoints.read_meta_properties(log_dir / checkpoints.META_PROPERTIES)
        return self._identities[log_dir]

    def _dirs_of_broker(self, log_dir: Path) -> list[Path]:
        """All known log directories of the broker: those named, those in server.properties, and neighbours whose
        meta.properties name the same broker."""
        mine = self.broker(log_dir)
        given = {*self.log_dirs, *self._configured_dirs(), *filter(None, [self.metadata_dir])}
        if mine is None:
            return [log_dir, *sorted(given - {log_dir})]
        others = sorted((given | set(_neighbours(log_dir))) - {log_dir})
        return [log_dir, *(path for path in others if self._is_another_of(mine, path))]

    def _is_another_of(self, mine: MetaProperties, log_dir: Path) -> bool:
        """Whether it is another log directory of the same broker, and not a copy of this one."""
        try:
            found = self.broker(log_dir)
        except SextonError:
            return False  # a neighbour that is not a log directory
        return (
            found is not None
            and (found.cluster_id, found.node_id) == (mine.cluster_id, mine.node_id)
            and (found.directory_id is None or found.directory_id != mine.directory_id)
        )

    def _configured_dirs(self) -> Iterator[Path]:
        settings = self.server_properties or {}
        listed = next((settings[name] for name in LOG_DIRS if name in settings), "")
        for text in filter(None, map(str.strip, listed.split(","))):
            if Path(text).is_dir():
                yield Path(text).resolve()

    # ---- cluster metadata ----

    def metadata(self, log_dir: Path) -> ClusterMetadata | None:
        """A broker with several log directories keeps the metadata in one of them."""
        places = [self.metadata_dir] if self.metadata_dir is not None else self._dirs_of_broker(log_dir)
        for place in places:
            if place not in self._metadata:
                self._metadata[place] = read_metadata(place)
            if (found := self._metadata[place]) is not None:
                return found
        return None

    def config(self, directory: Path, overrides: Mapping[str, str], policy_if_unknown: str = "") -> KnownConfig:
        """Compacting a topic whose policy is not compact would destroy it, so the caller must know the policy or
        provide `policy_if_unknown`."""
        topic = names.parse_partition_dir(directory.name).topic
        log_dir, assumptions = directory.parent, []
        layers = [topic_names(self.server_properties or {})]
        found = self.metadata(log_dir)
        if found is not None:
            layers += [topic_names(found.cluster_defaults), topic_names(self._brokers_own(log_dir, found))]
        if found is not None and topic in found.topics and _is_same_topic(directory, found.topic_ids.get(topic)):
            layers.append(found.topics[topic])
        else:
            assumptions.append(
                "the topic's settings are in Sexton's metastore, which is not asked here: defaults"
                if is_sextons(directory)
                else "no cluster metadata mentions the topic: Kafka's defaults"
            )
            if "cleanup.policy" not in overrides:
                if not policy_if_unknown:
                    raise _policy_unknown(topic)
                assumptions.append(f"cleanup.policy={policy_if_unknown}")
                layers.append({"cleanup.policy": policy_if_unknown})
        if self.server_properties is None and not is_sextons(directory):
            assumptions.append("what server.properties sets is not known: Kafka's defaults (see --server-properties)")
        return KnownConfig(TopicConfig.of(*layers, overrides), tuple(assumptions))

    def _brokers_own(self, log_dir: Path, found: ClusterMetadata) -> Mapping[str, str]:
        mine = self.broker(log_dir)
        return {} if mine is None else found.brokers.get(str(mine.node_id), {})

    def replicas(self, directories: Sequence[Path]) -> frozenset[int] | None:
        """The brokers that have a partition, by the newest metadata beside any of its replicas."""
        known = [found for directory in directories if (found := self.metadata(directory.parent)) is not None]
        newest = max(known, key=lambda found: found.end_offset, default=None)
        if newest is None or newest.replicas is None:
            return None
        partition = names.parse_partition_dir(directories[0].name)
        return newest.replicas.get((partition.topic, partition.partition))

    # ---- whether it may be changed ----

    def check_may_change(self, directory: Path) -> None:
        if directory.is_symlink():
            raise NotALogError(
                "the partition is a symbolic link, and others may reach it under other names",
                str(directory),
                "Put the directory itself where the link is; the broker must be stopped",
            )
        if is_sextons(directory):
            raise SextonReplicaError(
                "this is a Sexton broker's replica, which is compacted together with the others: done alone, what goes "
                "could come back from them",
                str(directory),
                "Start the broker and a compactor (sexton up, sexton compactor), and ask for it with sexton compaction "
                f"run. A copy that no broker will ever use can be compacted once {' and '.join(SEXTON_FILES)} are "
                "removed from it",
            )
        self._check_stays(directory)

    def _check_stays(self, directory: Path) -> None:
        """Kafka does not clean a partition while it moves between log directories: when the move is done, the cleaner's
        checkpoint is applied to the copy, which is not as clean."""
        log_dir, known = directory.parent, self._dirs_of_broker(directory.parent)
        for place in known:
            for future in _futures(place, directory.name):
                raise LogInUseError(
                    f"the partition is being moved to {future}",
                    str(directory),
                    "Start the broker, wait until the move is done (kafka-reassign-partitions --verify), stop it, and "
                    "run this again",
                )
        mine, found = self.broker(log_dir), self.metadata(log_dir)
        if mine is None or mine.node_id is None or found is None or found.log_dirs is None:
            return
        seen = {other.directory_id for place in known if (other := self.broker(place)) is not None}
        missing_count = len(found.log_dirs.get(mine.node_id, frozenset()) - seen)
        if missing_count:
            raise BadSettingError(
                f"broker {mine.node_id} has {missing_count} more log directories than are known here, and the "
                "partition may be on its way to one of them",
                str(directory),
                "Pass the broker's settings with --server-properties FILE, or name its other log directories, too",
            )


def _neighbours(log_dir: Path) -> Iterator[Path]:
    """Log directories beside this one, where a broker's other ones often are."""
    with suppress(OSError):
        for path in log_dir.parent.iterdir():
            with suppress(OSError):
                if (path / checkpoints.META_PROPERTIES).is_file():
                    yield path


def _futures(log_dir: Path, name: str) -> Iterator[Path]:
    live = names.parse_partition_dir(name)
    for path in log_dir.glob(f"{name}.*{names.DirState.FUTURE.value}"):
        try:
            found = names.parse_partition_dir(path.name)
        except NotALogError:
            continue
        if (found.topic, found.partition) == (live.topic, live.partition):
            yield path


def _is_same_topic(directory: Path, topic_id: uuid.UUID | None) -> bool:
    """Whether the metadata is about this very topic, and not about another of the same name that was deleted or created
    since."""
    found = topic_id_of(directory)
    return found is None or topic_id is None or found == topic_id


def topic_id_of(directory: Path) -> uuid.UUID | None:
    found = checkpoints.read_partition_metadata(directory / checkpoints.PARTITION_METADATA)
    return None if found is None else found.topic_id


def _policy_unknown(topic: str) -> BadSettingError:
    return BadSettingError(
        f"the cleanup.policy of topic {topic} is unknown: no cluster metadata here mentions it",
        "",
        "If it is compacted, say so with --config cleanup.policy=compact, or name the directory that has "
        "__cluster_metadata-0 with --metadata",
    )
