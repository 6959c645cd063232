from __future__ import annotations

from sexton.errors import EnvironmentFailure


class HarnessError(EnvironmentFailure):
    """A cluster could not be fetched, started, stopped or asked: the environment is at fault, or the call."""
