"""Real Sexton brokers: one process each, as people run them. See `sexton.clusters.brokers`."""

from sexton.clusters.brokers import ENVIRONMENT, SextonCluster
from tests.kafka.jars import PROJECT_DIR

__all__ = ["ENVIRONMENT", "SextonCluster"]

ENVIRONMENT.update(PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=str(PROJECT_DIR / "build" / "bytecode"))
"""As on a user's machine, where Python keeps what it has compiled: compiling anew takes half a second at each start."""
