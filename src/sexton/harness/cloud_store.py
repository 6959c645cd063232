"""A store for the cloud topics of real brokers: versitygw, and a proxy in front of it that a test can make fail.

with CloudStore(directory) as store, SextonCluster(3, settings=..., store=store) as sexton:
    store.proxy.faults = StoreFaults(busy=1.0)       # every request: 503
    store.gateway.pause()                            # nobody answers
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sexton.harness.processes import HOST
from sexton.harness.properties import Settings
from sexton.harness.store_proxy import StoreFaults, StoreProxy
from sexton.harness.versitygw import VersityGateway

BUCKET: Final = "topics"
PREFIX: Final = "cluster"


class CloudStore:
    def __init__(self, directory: Path, faults: StoreFaults | None = None, seed: int = 0, host: str = HOST) -> None:
        """Starts nothing. The host is the address at which brokers reach this machine."""
        self.gateway = VersityGateway(directory)
        self.gateway.make_bucket(BUCKET)
        self.proxy = StoreProxy(self.gateway.port, faults, seed, host)
        self.environment = self.gateway.credentials
        """That brokers, and whoever looks at the store, need."""
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """The URL that brokers use: it goes through the proxy."""
        return self.gateway.url(BUCKET, PREFIX, self.proxy.endpoint)

    @property
    def settings(self) -> Settings:
        """Of brokers whose topics are cloud topics unless they say otherwise."""
        return {"cloud.store.url": self.url, "default.storage.mode": "cloud"}

    @property
    def objects(self) -> list[Path]:
        """Files of the gateway's, one for each object that is there. Not the marker. Directories that the gateway
        removes meanwhile are passed over."""
        found = os.walk(self.gateway.bucket_dir(BUCKET) / PREFIX)
        files = (Path(at, name) for at, _, names in found for name in names)
        return [path for path in files if path.parent.parent.name in ("l0", "l1")]

    @property
    def marker(self) -> Path:
        return self.gateway.bucket_dir(BUCKET) / PREFIX / "sexton.json"

    def heal(self) -> None:
        self.proxy.faults = StoreFaults()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.gateway)
            stack.enter_context(self.proxy)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
