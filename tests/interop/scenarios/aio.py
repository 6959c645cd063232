"""aiokafka."""

from __future__ import annotations

from sexton.verify.clients import aio
from sexton.verify.clients.base import Refused
from tests.interop.scenarios import everyone
from tests.interop.scenarios.common import Cluster, raised_by
from tests.interop.scenarios.kit import Client

scenarios = everyone.over(aio, without=("cooperative", "kip848", "server_pattern"))


@scenarios("unknown_topic")
def producing_to_an_unknown_topic(cluster: Cluster) -> None:
    settings = {"request.timeout.ms": 2_000}  # how long it asks for a topic that may yet appear
    raised_by(lambda: Client(aio, cluster).produce(cluster.name("unknown"), [b"v"], settings), Refused)
