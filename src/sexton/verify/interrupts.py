"""Ctrl-C, heard where nothing is half done.

Raised wherever Python happens to be, it would leave an operation that is in the history and not in its file, or a
client of which nobody knows any more what it was asked. So a run counts it, and asks at each turn.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupts:
    """While it is entered. In any thread but the main one it changes nothing: Python tells no other of signals."""

    def __init__(self) -> None:
        self._count = 0
        self._before: Any = None
        self._is_listening = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._hear)
            self._is_listening = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_listening:
            signal.signal(signal.SIGINT, self._before)
            self._is_listening = False

    def _hear(self, signum: int, frame: FrameType | None) -> None:
        self._count += 1

    def take(self) -> None:
        """Raises KeyboardInterrupt, once for each that has come."""
        if self._count:
            self._count -= 1
            raise KeyboardInterrupt
