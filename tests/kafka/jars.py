from pathlib import Path
from typing import Final

from sexton.clusters.errors import HarnessError
from sexton.clusters.jars import CACHE_VARIABLE, DEFAULT_VERSION, VERSIONS, classpath, fetched_jars, java

PROJECT_DIR: Final = Path(__file__).resolve().parents[2]

__all__ = [
    "CACHE_VARIABLE",
    "DEFAULT_VERSION",
    "PROJECT_DIR",
    "VERSIONS",
    "HarnessError",
    "classpath",
    "fetched_jars",
    "java",
]
