"""What is installed besides the base. A broker needs none of it, and its host saves a gigabyte.

`pip install 'sexton[compactor]'` is for whatever compacts, or reads logs on Spark; `sexton[postgres]` for a metastore
in PostgreSQL; `sexton[cloud]` for cloud topics in S3, GCS or Azure (a folder needs nothing); `sexton[verify]` for the
clients that `sexton verify run` tests a cluster with, its judge, and the pictures of its page; `sexton[all]` for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import ClassVar, Final

from sexton.errors import SextonError

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "cloud": ("obstore",),
    "compactor": ("numba", "pandas", "prometheus_client", "pyarrow", "pyspark"),
    "postgres": ("psycopg",),
    "verify": ("aiokafka", "confluent_kafka", "kafka", "matplotlib", "numba", "pyarrow"),
}
"""By extra. A test compares them with pyproject.toml."""


class MissingExtraError(SextonError):
    """EX_UNAVAILABLE of BSD's sysexits: install it, and try again."""

    exit_code: ClassVar[int] = 69


def need(extra: str, user: str, otherwise: str = "") -> None:
    """Raises MissingExtraError if a module of the extra is not installed. `otherwise` is how to do without."""
    missing = [name for name in MODULES[extra] if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"{user} needs {', '.join(missing)}", "", _remedy(extra) + otherwise)


def missing_extra(error: ImportError) -> MissingExtraError | None:
    """What to tell of an import that failed, if it is one of a module that an extra has."""
    module = (error.name or "").partition(".")[0]
    for extra, names in MODULES.items():
        if module in names:
            return MissingExtraError(f"this command needs {module}", "", _remedy(extra))
    return None


def _remedy(extra: str) -> str:
    return f"Install it: pip install 'sexton[{extra}]'"
