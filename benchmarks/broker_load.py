"""A small, fast producer for benchmarks: single-record requests over raw sockets, in a process of its own.

    python -m benchmarks.broker_load --bootstrap HOST:PORT --topic T --connections 8 --requests 100000

Every request is the same bytes, encoded once, so that the generator costs the machine little: it counts answers,
looks at their error codes and measures how long each took. Up to five requests are in flight on each connection, as
in a real client. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import select
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sexton.protocol import messages
from sexton.records.batch import Record, encode, make_batch

PRODUCE, PRODUCE_VERSION = 0, 9
METADATA, METADATA_VERSION = 3, 9
PIPELINE = 5
"""max.in.flight.requests.per.connection of Kafka's clients."""

RECEIVE_BYTES = 1 << 16
STALL_S = 30
ANSWER_TIMEOUT_MS = 30_000


@dataclass
class Load:
    topic: str
    connections: int
    requests: int
    record_bytes: int = 100
    acks: int = 1
    pipeline: int = PIPELINE


@dataclass
class Link:
    """One connection: what it sends, and when the requests in flight were sent."""

    sock: socket.socket
    request: bytes
    answer_bytes: int = 0
    received: bytearray = field(default_factory=bytearray)
    sent_ns: deque[int] = field(default_factory=deque)
    backlog: bytes = b""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--acks", type=int, default=1)
    parser.add_argument("--pipeline", type=int, default=PIPELINE)
    parser.add_argument("--warm-up", type=int, default=0, help="requests that are not measured, sent first")
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, given.connections + 100)), hard))
    load = Load(given.topic, given.connections, given.requests, given.record_bytes, given.acks, given.pipeline)
    links = connect(given.bootstrap, load)
    if given.warm_up:
        run(links, given.warm_up, given.pipeline)
    print(json.dumps(run(links, load.requests, load.pipeline)))


def connect(bootstrap: str, load: Load) -> list[Link]:
    """Connections spread over the partitions, each to its leader, each with one answered request behind it."""
    addresses = leaders(bootstrap, load.topic)
    links = []
    for number in range(load.connections):
        partition = number % len(addresses)
        sock = socket.create_connection(addresses[partition], timeout=STALL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        links.append(Link(sock, produce_request(load, partition)))
    for link in links:
        link.answer_bytes = first_answer(link)
        link.sock.setblocking(False)
    return links


def produce_request(load: Load, partition: int) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    batch = encode(make_batch([Record(0, now_ms, None, b"x" * load.record_bytes)]))
    partitions = [{"index": partition, "records": batch}]
    body = {
        "acks": load.acks,
        "timeout": ANSWER_TIMEOUT_MS,
        "timeout_ms": ANSWER_TIMEOUT_MS,
        "topic_data": [{"name": load.topic, "partition_data": partitions}],
    }
    return messages.encode_request(PRODUCE, PRODUCE_VERSION, 1, "load", body)


def leaders(bootstrap: str, topic: str) -> list[tuple[str, int]]:
    """Of each partition, in order."""
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=STALL_S) as sock:
        sock.sendall(messages.encode_request(METADATA, METADATA_VERSION, 1, "load", {"topics": [{"name": topic}]}))
        answer: Any = messages.decode_response(METADATA, METADATA_VERSION, memoryview(receive_frame(sock)))[1]
    brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
    partitions = sorted(answer.topics[0].partitions, key=lambda each: int(each.partition_index))
    return [brokers[partition.leader_id] for partition in partitions]


def receive_frame(sock: socket.socket) -> bytes:
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack(">i", data[:4])[0]:
        part = sock.recv(RECEIVE_BYTES)
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data[4:]


def first_answer(link: Link) -> int:
    """Sends one request, judges its answer in full, returns the size that all later ones have, too."""
    link.sock.sendall(link.request)
    frame = receive_frame(link.sock)
    answer: Any = messages.decode_response(PRODUCE, PRODUCE_VERSION, memoryview(frame))[1]
    (partition,) = answer.responses[0].partition_responses
    if partition.error_code:
        raise RuntimeError(f"the broker refused the record: {partition.error_code}")
    return 4 + len(frame)


def run(links: list[Link], requests: int, pipeline: int) -> dict[str, float]:
    """Sends until that many are answered; rates and latencies of exactly those."""
    poll = select.epoll()
    by_fd = {link.sock.fileno(): link for link in links}
    latencies_ns = np.zeros(requests, dtype=np.int64)
    sent = answered = errors = 0
    started_ns = time.perf_counter_ns()
    cpu_started_s = time.process_time()
    for fd, link in by_fd.items():
        poll.register(fd, select.EPOLLIN)
        count = min(pipeline, requests - sent)
        sent += count
        send(link, count, time.perf_counter_ns())
    while answered < requests:
        events = poll.poll(STALL_S)
        if not events:
            raise TimeoutError(f"no answer for {STALL_S} s after {answered} of {requests} requests")
        for fd, _ in events:
            link = by_fd[fd]
            done, wrong = receive(link)
            now_ns = time.perf_counter_ns()
            for _ in range(done):
                latencies_ns[answered] = now_ns - link.sent_ns.popleft()
                answered += 1
            errors += wrong
            count = min(done, requests - sent)
            sent += count
            send(link, count, now_ns)
    elapsed_s = (time.perf_counter_ns() - started_ns) / 1e9
    poll.close()
    p50_ns, p99_ns = np.percentile(latencies_ns, (50, 99))
    return {
        "requests": requests,
        "seconds": elapsed_s,
        "per_second": requests / elapsed_s,
        "p50_ms": float(p50_ns) / 1e6,
        "p99_ms": float(p99_ns) / 1e6,
        "errors": errors,
        "generator_cpu_s": time.process_time() - cpu_started_s,
    }


def send(link: Link, count: int, now_ns: int) -> None:
    if not count and not link.backlog:
        return
    data = link.backlog + link.request * count
    link.sent_ns.extend([now_ns] * count)
    try:
        written = link.sock.send(data)
    except BlockingIOError:
        written = 0
    link.backlog = data[written:]  # leaves with the next answer: at most a pipeline's worth


def receive(link: Link) -> tuple[int, int]:
    """How many answers are complete now, and how many of them carry an error."""
    data = link.sock.recv(RECEIVE_BYTES)
    if not data:
        raise ConnectionError("the broker closed the connection")
    link.received += data
    size = link.answer_bytes
    done = len(link.received) // size
    # Behind size, correlation id, tags, and the topic's name: index (4 bytes), then the error code.
    wrong = 0
    for start in range(0, done * size, size):
        at = start + 4 + 4 + 1 + 1
        at += link.received[at] + 1 + 4
        wrong += link.received[at] != 0 or link.received[at + 1] != 0
    del link.received[: done * size]
    return done, wrong


if __name__ == "__main__":
    main()
