"""Where the project is: tests start its commands there."""

from pathlib import Path
from typing import Final

PROJECT_DIR: Final = Path(__file__).resolve().parents[1]
PYTHON_PATH: Final = f"{PROJECT_DIR}:{PROJECT_DIR}/src"
"""For processes in environments that have a client and nothing of ours: the tests, and Sexton's sources."""
