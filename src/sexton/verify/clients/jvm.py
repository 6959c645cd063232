"""A JVM with Kafka's jars, called from Python (py4j, which Spark brings). SEXTON_CLIENT_CLASSPATH names the jars."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path, launch_gateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from sexton.verify.clients.base import CALL_TIMEOUT_S, Settings


@functools.cache
def gateway() -> Any:
    """One for the whole process, with which it ends."""
    port = launch_gateway(
        classpath=os.environ["SEXTON_CLIENT_CLASSPATH"],
        jarpath=find_jar_path(),
        javaopts=["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        die_on_exit=True,
        redirect_stdout=2,
        redirect_stderr=2,
    )
    return JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=False))


def java() -> Any:
    """The JVM's packages as attributes."""
    return gateway().jvm


def kafka() -> Any:
    return java().org.apache.kafka


def client_version() -> tuple[int, int]:
    major, minor, *_ = str(kafka().common.utils.AppInfoParser.getVersion()).split(".")
    return int(major), int(minor)


def properties(bootstrap: str, settings: Settings) -> Any:
    found = java().java.util.Properties()
    for name, value in {"bootstrap.servers": bootstrap, **settings}.items():
        found.put(name, str(value).lower() if isinstance(value, bool) else str(value))
    return found


def java_list(items: Iterable[Any]) -> Any:
    made = java().java.util.ArrayList()
    for item in items:
        made.add(item)
    return made


def java_map(items: Mapping[Any, Any]) -> Any:
    made = java().java.util.HashMap()
    for key, value in items.items():
        made.put(key, value)
    return made


def partition_of(topic: str, number: int) -> Any:
    return kafka().common.TopicPartition(topic, number)


def wait(future: Any) -> Any:
    """What a KafkaFuture or a producer's future ends in."""
    return future.get(int(CALL_TIMEOUT_S), java().java.util.concurrent.TimeUnit.SECONDS)


def first_known(*calls: Callable[[], Any]) -> Any:
    """What the first of these returns whose method this version has (py4j finds out only by calling)."""
    for call in calls[:-1]:
        try:
            return call()
        except Py4JError as error:
            if isinstance(error, Py4JJavaError) or "does not exist" not in str(error):
                raise
    return calls[-1]()


def causes_of(raised: Any) -> list[Any]:
    """The exception that Java threw, and those behind it, the first one last."""
    causes = [raised.java_exception]
    while causes[-1].getCause() is not None:
        causes.append(causes[-1].getCause())
    return causes


def name_of(thrown: Any) -> str:
    return str(thrown.getClass().getSimpleName())


def close_at_once(client: Any) -> None:
    """A producer or consumer; before 2.0 it took a number and a unit."""
    first_known(
        lambda: client.close(java().java.time.Duration.ofMillis(0)),
        lambda: client.close(0, java().java.util.concurrent.TimeUnit.MILLISECONDS),
    )
