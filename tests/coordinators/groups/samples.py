"""One record of each kind, with every optional part filled in once and left out once."""

from __future__ import annotations

import uuid

from sexton.coordinators.groups import records as r

T1 = uuid.UUID("4a5b0000-0000-0000-0000-000000000001")
T2 = uuid.UUID("4a5b0000-0000-0000-0000-000000000002")
STARTED = {T1: frozenset({0, 2}), T2: frozenset({1})}
CLASSIC = r.ClassicProtocols(30_000, (("range", b"\0\1"), ("sticky", b"")))

RECORDS: list[r.Record] = [
    (r.OffsetKey("g", "t", 3), r.OffsetValue(42, "note ü", 1_700_000_000_000, 5)),
    (r.OffsetKey("g", "t", 4), r.OffsetValue(43, "", 1_700_000_000_001, -1, 1_700_000_009_000)),
    (r.OffsetKey("g", "t", 5), r.OffsetValue(44, "note", 1_700_000_000_002, 6, topic_id=T1)),
    (r.OffsetKey("g", "gone", 0), None),
    (
        r.ClassicGroupKey("classic"),
        r.ClassicGroupValue(
            "consumer",
            7,
            "range",
            "m1",
            1_700_000_000_000,
            (
                r.ClassicMemberValue("m1", "i1", "app", "/10.0.0.1", 60_000, 10_000, b"sub", b"ass"),
                r.ClassicMemberValue("m2", None, "app", "/10.0.0.2", 60_000, 10_000, b"", b""),
            ),
        ),
    ),
    (r.ClassicGroupKey("empty"), r.ClassicGroupValue("", 0, None, None, -1, ())),
    (r.ClassicGroupKey("gone"), None),
    (r.EpochKey("g"), r.EpochValue(3, -12345678901)),
    (r.EpochKey("h"), r.EpochValue(4)),
    (
        r.MemberKey("g", "m"),
        r.MemberValue("i", "rack", "app", "/10.0.0.1", ("a", "b"), "a.*", 60_000, "range", CLASSIC),
    ),
    (r.MemberKey("g", "n"), r.MemberValue(None, None, "app", "/10.0.0.1", (), None, -1, None)),
    (r.TargetEpochKey("g"), r.TargetEpochValue(3)),
    (r.TargetKey("g", "m"), r.TargetValue(STARTED)),
    (r.TargetKey("g", "n"), r.TargetValue({})),
    (r.CurrentKey("g", "m"), r.CurrentValue(3, 2, r.MemberState.UNREVOKED_PARTITIONS, STARTED, {T2: frozenset({0})})),
    (r.CurrentKey("g", "n"), None),
    (r.RegexKey("g", "a.*"), r.RegexValue(("a", "ab"), 9, 1_700_000_000_000)),
]

T1_SHOWN = "SlsAAAAAAAAAAAAAAAAAAQ"
T2_SHOWN = "SlsAAAAAAAAAAAAAAAAAAg"
STARTED_SHOWN = [{"topicId": T1_SHOWN, "partitions": [0, 2]}, {"topicId": T2_SHOWN, "partitions": [1]}]
_APP = {"clientId": "app", "clientHost": "/10.0.0.1"}
_TIMES = {"rebalanceTimeout": 60000, "sessionTimeout": 10000}

SHOWN: list[dict[str, object] | None] = [
    {"offset": 42, "leaderEpoch": 5, "metadata": "note ü", "commitTimestamp": 1700000000000},
    {"offset": 43, "metadata": "", "commitTimestamp": 1700000000001, "expireTimestamp": 1700000009000},
    {"offset": 44, "leaderEpoch": 6, "metadata": "note", "commitTimestamp": 1700000000002, "topicId": T1_SHOWN},
    None,
    {
        "protocolType": "consumer",
        "generation": 7,
        "protocol": "range",
        "leader": "m1",
        "currentStateTimestamp": 1700000000000,
        "members": [
            {"memberId": "m1", "groupInstanceId": "i1", "subscription": "c3Vi", "assignment": "YXNz", **_APP, **_TIMES},
            {
                "memberId": "m2",
                "groupInstanceId": None,
                "clientId": "app",
                "clientHost": "/10.0.0.2",
                "subscription": "",
                "assignment": "",
                **_TIMES,
            },
        ],
    },
    {
        "protocolType": "",
        "generation": 0,
        "protocol": None,
        "leader": None,
        "currentStateTimestamp": -1,
        "members": [],
    },
    None,
    {"epoch": 3, "metadataHash": -12345678901},
    {"epoch": 4},
    {
        "instanceId": "i",
        "rackId": "rack",
        "subscribedTopicNames": ["a", "b"],
        "subscribedTopicRegex": "a.*",
        "rebalanceTimeoutMs": 60000,
        "serverAssignor": "range",
        "classicMemberMetadata": {
            "sessionTimeoutMs": 30000,
            "supportedProtocols": [{"name": "range", "metadata": "AAE="}, {"name": "sticky", "metadata": ""}],
        },
        **_APP,
    },
    {
        "instanceId": None,
        "rackId": None,
        "subscribedTopicNames": [],
        "subscribedTopicRegex": None,
        "rebalanceTimeoutMs": -1,
        "serverAssignor": None,
        **_APP,
    },
    {"assignmentEpoch": 3},
    {"topicPartitions": STARTED_SHOWN},
    {"topicPartitions": []},
    {
        "memberEpoch": 3,
        "previousMemberEpoch": 2,
        "state": 1,
        "assignedPartitions": STARTED_SHOWN,
        "partitionsPendingRevocation": [{"topicId": T2_SHOWN, "partitions": [0]}],
    },
    None,
    {"topics": ["a", "ab"], "version": 9, "timestamp": 1700000000000},
]
"""The values, as Kafka's dump tool is to show them."""

BYTES: list[tuple[str, str | None]] = [
    ("000100016700017400000003", "0003000000000000002a0000000500076e6f746520c3bc0000018bcfe56800"),
    ("000100016700017400000004", "0001000000000000002b00000000018bcfe568010000018bcfe58b28"),
    (
        "000100016700017400000005",
        "0004000000000000002c00000006056e6f74650000018bcfe568020100104a5b0000000000000000000000000001",
    ),
    ("00010001670004676f6e6500000000", None),
    (
        "00020007636c6173736963",
        "00030008636f6e73756d657200000007000572616e676500026d310000018bcfe568000000000200026d3100026931000361707000092f31302e302e302e310000ea6000002710000000037375620000000361737300026d32ffff000361707000092f31302e302e302e320000ea60000027100000000000000000",
    ),
    ("00020005656d707479", "0003000000000000ffffffffffffffffffffffff00000000"),
    ("00020004676f6e65", None),
    ("0003000167", "000000000003010008fffffffd2023e3cb"),
    ("0003000168", "00000000000400"),
    (
        "000500016700016d",
        "00000269057261636b046170700a2f31302e302e302e31030261026204612e2a0000ea600672616e676501001a0100007530030672616e67650300010007737469636b79010000",
    ),
    ("000500016700016e", "00000000046170700a2f31302e302e302e310100ffffffff0000"),
    ("0006000167", "00000000000300"),
    (
        "000700016700016d",
        "0000034a5b0000000000000000000000000001030000000000000002004a5b000000000000000000000000000202000000010000",
    ),
    ("000700016700016e", "00000100"),
    (
        "000800016700016d",
        "0000000000030000000201034a5b0000000000000000000000000001030000000000000002004a5b0000000000000000000000000002020000000100024a5b000000000000000000000000000202000000000000",
    ),
    ("000800016700016e", None),
    ("00100001670003612e2a", "000003026103616200000000000000090000018bcfe5680000"),
]
"""The records, as they are in the log: keys and values, in hexadecimal digits."""
