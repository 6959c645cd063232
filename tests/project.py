"""Where the project is: tests start its commands there."""

from pathlib import Path
from typing import Final

PROJECT_DIR: Final = Path(__file__).resolve().parents[1]
