"""What can be named on the command line of `sexton verify`: for the shell's completion, which must not import what
these are of. A test compares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sexton.cli.broker import UsageError

if TYPE_CHECKING:
    from sexton.checker.allowed import Model

SYSTEMS: Final = ("sexton", "sexton-independent", "kafka-4.3.0", "kafka-3.9.2")
WORKLOADS: Final = (
    "queue",
    "table",
    "register",
    "append",
    "abort",
    "early-read",
    "auto-commit",
    "groups",
    "eos",
    "mixed",
)
WAYS: Final = ("assign", "subscribe")
FAULTS: Final = (
    "kill",
    "stop",
    "rolling-restart",
    "pause",
    "partition",
    "clock",
    "grave",
    "leadership",
    "membership",
    "compactor",
    "metastore",
    "store",
    "failing-disk",
    "failing-writes",
    "failing-renames",
    "no-space",
    "full-disk",
    "read-only-disk",
    "slow-disk",
    "lost-disk",
    "old-image",
    "corrupt-file",
    "kill-clients",
    "pause-clients",
    "late",
    "slow-network",
)
LATE: Final = ("end-txn", "add-partitions-to-txn", "produce", "txn-offset-commit")
ACKS: Final = ("all", "1", "0")
POSITIONS: Final = ("advance", "rewind")
CLIENTS: Final = ("confluent-kafka", "aiokafka", "kafka-python", "java", "franz-go")
MODELS: Final = ("kafka", "jepsen", "strict")
DEFAULT_NODES: Final = 3
METASTORES: Final = ("sqlite", "postgres")
STORAGES: Final = ("local", "cloud")
ISOLATIONS: Final = ("read_committed", "read_uncommitted")


def among(names: tuple[str, ...], *, has_list: bool = False) -> Callable[[str], list[str]]:
    """Completes a name, or the last one of several with commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if has_list else ("", "", incomplete)
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def names_in(text: str, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(filter(None, text.split(","))))
    for name in names:
        if name not in known:
            raise UsageError(f"there is no {what} {name}", "", f"Known are {', '.join(known)}")
    return names


def clients_in(text: str) -> tuple[str, ...]:
    from sexton.verify.clients import known

    names = tuple(dict.fromkeys(filter(None, text.split(","))))
    names_in(",".join(name for name in names if not known.java_version(name)), CLIENTS, "client")
    return names


def ignored_in(text: str) -> tuple[str, ...]:
    from sexton.checker.anomalies import ANOMALIES

    return names_in(text, tuple(ANOMALIES), "anomaly")


def model_named(name: str) -> Model:
    from sexton.checker.allowed import Model

    names_in(name, MODELS, "model")
    return Model(name)
