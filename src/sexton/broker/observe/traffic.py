"""Counters of the hot path. Numbers only, and the clock is read once for all requests that arrived together."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the latency histogram. It goes up to 30 s because a fetch may wait for records."""


class ApiTraffic:
    """Counters of one API: number of requests, their bytes, and the seconds from their arrival until their responses
    were sent."""

    __slots__ = ("counts", "request_bytes", "requests_count", "response_bytes", "seconds")

    def __init__(self) -> None:
        self.requests_count = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.seconds = 0.0
        self.counts = [0] * (len(BOUNDS_S) + 1)

    def answered(self, seconds: float) -> None:
        self.seconds += seconds
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1


class Traffic:
    """Counters of all APIs, by API key. Bytes that cannot be parsed as a request are not counted here."""

    __slots__ = ("by_api", "malformed_count")

    def __init__(self) -> None:
        self.by_api: dict[int, ApiTraffic] = {}
        self.malformed_count = 0

    def of(self, api_key: int) -> ApiTraffic:
        found = self.by_api.get(api_key)
        if found is None:
            found = self.by_api[api_key] = ApiTraffic()
        return found
