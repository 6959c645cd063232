"""A JVM with a framework's jars, driven from Python (py4j, which Spark brings); it ends with the process that asked.

The programs of this folder are started with one argument, their task as JSON, and say on standard output how they fare.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path, launch_gateway  # type: ignore[import-untyped]

OPENED = ("java.base/java.lang", "java.base/java.util", "java.base/java.time", "java.base/java.util.concurrent")
"""Flink reads fields of these."""

OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.org.apache.flink.metrics=error",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    *(f"--add-opens={each}=ALL-UNNAMED" for each in OPENED),
)


def task() -> dict[str, Any]:
    """What this process was started for."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def say(what: str) -> None:
    print(what, flush=True)


def start(classpath: str) -> Any:
    """The JVM's packages as attributes."""
    port = launch_gateway(
        classpath=classpath,
        jarpath=find_jar_path(),
        javaopts=list(OPTIONS),
        die_on_exit=True,
        redirect_stdout=2,
        redirect_stderr=2,
    )
    return JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=False)).jvm


def java_map(jvm: Any, items: Mapping[str, object]) -> Any:
    made = jvm.java.util.HashMap()
    for name, value in items.items():
        made.put(name, str(value))
    return made


def java_list(jvm: Any, items: Iterable[object]) -> Any:
    made = jvm.java.util.ArrayList()
    for item in items:
        made.add(item)
    return made
