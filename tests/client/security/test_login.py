"""Logging in at a broker that answers as a test tells it to: refusals say what to do, and are not tried again."""

from __future__ import annotations

from typing import Any

import pytest

from sexton.client import apis
from sexton.client.client import Client
from sexton.client.security.errors import LoginFailedError
from sexton.client.security.login import Login
from sexton.protocol.errors import ErrorCode
from sexton.simulate.clock import SimulatedClock, WallClock
from tests.client.scripted import HOST, PORT, World, simulate

ALICE = Login("PLAIN", "alice", "secret")


def client(world: World, login: Login) -> Client:
    clock = SimulatedClock(WallClock(), world.process, world.loop)
    return Client(world.network, [(HOST, PORT)], clock=clock, rng=world.rng, connect_timeout_ms=1000, login=login)


def test_plain_sends_name_and_password_before_anything_else_is_asked() -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[apis.SASL_HANDSHAKE.key] = lambda version, body: {"mechanisms": ["PLAIN"]}
        world.broker.handlers[apis.SASL_AUTHENTICATE.key] = lambda version, body: {"auth_bytes": b""}
        await client(world, ALICE).open()
        keys = [key for key, _ in world.broker.asked]
        assert keys == [apis.API_VERSIONS.key, apis.SASL_HANDSHAKE.key, apis.SASL_AUTHENTICATE.key, apis.METADATA.key]
        assert bytes(world.broker.asked[2][1].auth_bytes) == b"\0alice\0secret"

    simulate(scenario)


@pytest.mark.parametrize(
    ("handshake", "authenticate", "told"),
    [
        (
            {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": ["SCRAM-SHA-512"]},
            {},
            ("by PLAIN here; by SCRAM-SHA-512", "sasl.mechanism"),
        ),
        ({"error_code": ErrorCode.illegal_sasl_state}, {}, ("wants no login", "security.protocol")),
        (
            {"mechanisms": ["PLAIN"]},
            {"error_code": ErrorCode.sasl_authentication_failed, "error_message": "Authentication failed: bad."},
            ("Authentication failed: bad", "password"),
        ),
    ],
)
def test_a_refusal_is_told_once_with_what_to_do(
    handshake: dict[str, Any], authenticate: dict[str, Any], told: tuple[str, str]
) -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[apis.SASL_HANDSHAKE.key] = lambda version, body: handshake
        world.broker.handlers[apis.SASL_AUTHENTICATE.key] = lambda version, body: authenticate
        with pytest.raises(LoginFailedError) as refused:
            await client(world, ALICE).open()
        assert told[0] in refused.value.what
        assert told[1] in refused.value.remedy
        assert "secret" not in str(refused.value)
        assert [key for key, _ in world.broker.asked].count(apis.SASL_HANDSHAKE.key) == 1

    simulate(scenario)


def test_a_broker_that_answers_scram_wrongly_is_not_believed() -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[apis.SASL_HANDSHAKE.key] = lambda version, body: {"mechanisms": ["SCRAM-SHA-256"]}
        world.broker.handlers[apis.SASL_AUTHENTICATE.key] = lambda version, body: {"auth_bytes": b"r=x,s=eA==,i=4096"}
        with pytest.raises(LoginFailedError, match="nonce") as refused:
            await client(world, Login("SCRAM-SHA-256", "alice", "secret")).open()
        assert refused.value.place == f"{HOST}:{PORT}"

    simulate(scenario)
