"""A listener for replicas that no broker hosts."""

from __future__ import annotations

from sexton.replication.fetcher import Fetcher
from sexton.replication.local_replica import LocalReplica


class Listener:
    """Notes what replicas tell, and passes reports on to a fetcher, if there is one."""

    def __init__(self, fetcher: Fetcher | None = None) -> None:
        self.fenced: list[int] = []
        self.reports_count = 0
        self._fetcher = fetcher

    def follower_caught_up(self) -> None:
        pass

    def follower_fenced(self, replica: LocalReplica, follower: int) -> None:
        self.fenced.append(follower)

    async def high_watermark_lowered(self, replica: LocalReplica) -> None:
        pass

    def has_news_for_leader(self, replica: LocalReplica) -> None:
        self.reports_count += 1
        if self._fetcher is not None:
            self._fetcher.report(replica)
