"""Stores over HTTP: what each answer means for the caller, and what is never hidden."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sexton.adapters.objects import StoreTimeouts, open_store
from sexton.adapters.objects import remote as remotes
from sexton.errors import DamagedObjectError, SextonError
from sexton.harness.store_proxy import StoreFaults, StoreProxy
from sexton.harness.versitygw import VersityGateway
from sexton.ports.object_names import MARKER_KEY, claim_store, encode_marker
from sexton.ports.objects import ObjectMissingError, ObjectStore, StoreRefusedError, StoreUnavailableError
from tests.adapters.objects.scripted import DROP, HANG, Scripted, answer, scripted

SOON = StoreTimeouts(put_ms=500, get_ms=500, connect_ms=400)
CLUSTER = uuid.UUID(int=1)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "secret")


def url(server: Scripted, scheme: str = "s3") -> str:
    options = {"s3": "region=us-east-1&", "az": "account=someone&", "gs": ""}[scheme]
    return f"{scheme}://bucket/some/prefix?{options}endpoint={server.endpoint}"


CALLS: dict[str, Callable[[ObjectStore], Awaitable[Any]]] = {
    "put": lambda store: store.put("k", b"data"),
    "get": lambda store: store.get("k", 0, 100),
    "size": lambda store: store.size_bytes("k"),
    "delete": lambda store: store.delete(["k"]),
    "list": lambda store: _first(store),
    "create": lambda store: store.create_marker("k", b"data"),
}


async def _first(store: ObjectStore) -> object:
    async for one in store.list(""):
        return one
    return None


async def failure(store: ObjectStore, call: str) -> SextonError:
    with pytest.raises(SextonError) as caught:
        await CALLS[call](store)
    return caught.value


AWAY = [
    answer(503, "SlowDown"),
    answer(500, "InternalError"),
    answer(507, "InsufficientStorage"),
    answer(429, "TooManyRequests"),
    answer(408, "RequestTimeout"),
    DROP,
    HANG,
]
REFUSED = [
    answer(403, "AccessDenied"),
    answer(401, "Unauthorized"),
    answer(400, "ExpiredToken"),
    answer(400, "AuthorizationHeaderMalformed"),
    answer(403, "RequestTimeTooSkewed"),
    answer(404, "NoSuchBucket"),
    answer(301, "PermanentRedirect", "x-amz-bucket-region: eu-west-1\r\n"),
    answer(405, "MethodNotAllowed"),
]


@pytest.mark.parametrize("scheme", ["s3", "az", "gs"])
@pytest.mark.parametrize("call", CALLS)
async def test_a_store_that_is_away_slow_or_busy_is_unavailable(scheme: str, call: str) -> None:
    for given in AWAY:
        async with scripted(given) as server:
            error = await failure(open_store(url(server, scheme), SOON), call)
            assert type(error) is StoreUnavailableError, given
            assert len(server.asked) == 1, "each request is sent once: who calls decides about another"


@pytest.mark.parametrize("call", [name for name in CALLS if name not in ("size", "create")])
async def test_a_store_that_refuses_says_so_with_a_remedy(call: str) -> None:
    for given in REFUSED:
        async with scripted(given) as server:
            error = await failure(open_store(url(server), SOON), call)
            assert type(error) is StoreRefusedError, given
            assert error.remedy


@pytest.mark.parametrize("call", ["size", "create"])
async def test_a_refusal_without_a_body_is_one_by_its_status(call: str) -> None:
    """An answer to HEAD has none."""
    async with scripted(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n") as server:
        assert type(await failure(open_store(url(server), SOON), call)) is StoreRefusedError


async def test_each_refusal_has_its_own_remedy() -> None:
    remedies = {
        "RequestTimeTooSkewed": "clock",
        "ExpiredToken": "Renew the credentials",
        "NoSuchBucket": "Make the bucket",
        "SignatureDoesNotMatch": "secret key",
        "InvalidAccessKeyId": "access key",
        "PermanentRedirect": "region",
        "AccessDenied": "read, write, delete and list",
    }
    for code, remedy in remedies.items():
        async with scripted(answer(403, code)) as server:
            assert remedy in (await failure(open_store(url(server), SOON), "put")).remedy


async def test_errors_of_azure_and_google_are_told_apart_as_well() -> None:
    for scheme in ("az", "gs"):
        async with scripted(answer(403, "AuthenticationFailed")) as server:
            assert type(await failure(open_store(url(server, scheme), SOON), "put")) is StoreRefusedError
        async with scripted(answer(404, "BlobNotFound")) as server:
            assert type(await failure(open_store(url(server, scheme), SOON), "get")) is ObjectMissingError
        async with scripted(answer(404, "ContainerNotFound")) as server:
            assert type(await failure(open_store(url(server, scheme), SOON), "get")) is StoreRefusedError


async def test_nobody_there_is_unavailable() -> None:
    async with scripted(HANG) as server:
        pass
    assert type(await failure(open_store(url(server), SOON), "put")) is StoreUnavailableError


async def test_a_404_is_about_the_object_when_reading_and_about_the_bucket_when_writing() -> None:
    async with scripted(answer(404, "NoSuchKey")) as server:
        store = open_store(url(server), SOON)
        assert type(await failure(store, "get")) is ObjectMissingError
        assert list(await store.delete(["k"])) == ["k"], "what is not there is gone"
    async with scripted(answer(404)) as server:
        assert type(await failure(open_store(url(server), SOON), "put")) is StoreRefusedError
        assert type(await failure(open_store(url(server), SOON), "list")) is StoreRefusedError


PART = 'ETag: "x"\r\nLast-Modified: Tue, 15 Nov 2022 12:45:26 GMT\r\n'


async def test_an_answer_that_is_short_is_never_returned() -> None:
    """T21, and T9: fewer bytes are an error, whichever way they came."""
    ranged = answer(206, headers=f"{PART}Content-Range: bytes 0-2/3\r\n", body=b"abc")
    async with scripted(ranged) as server:
        assert type(await failure(open_store(url(server), SOON), "get")) is DamagedObjectError
    cut = f"HTTP/1.1 206 Said\r\nContent-Length: 100\r\n{PART}Content-Range: bytes 0-99/1000\r\n\r\nabc".encode()
    async with scripted(cut, DROP) as server:
        assert type(await failure(open_store(url(server), SOON), "get")) is StoreUnavailableError
    async with scripted(answer(416, "InvalidRange")) as server:
        assert type(await failure(open_store(url(server), SOON), "get")) is DamagedObjectError


async def test_an_object_is_put_in_one_request() -> None:
    """Parts of an upload that was cut off would stay, and cost, and nothing lists them."""
    async with scripted(answer(200, headers='ETag: "x"\r\n')) as server:
        await open_store(url(server)).put("k", bytes(20 << 20))
        assert server.asked == ["PUT /bucket/some/prefix/k"]


async def test_of_a_deletion_that_fails_for_half_of_the_keys_each_ones_outcome_is_kept() -> None:
    """T17. A bulk deletion that fails in part would not say which part."""
    async with scripted(answer(204)) as server:
        store = open_store(url(server))
        assert list(await store.delete(["a", "b"])) == ["a", "b"]
        assert sorted(server.asked) == ["DELETE /bucket/some/prefix/a", "DELETE /bucket/some/prefix/b"]
        server.answers = [answer(204), answer(503, "SlowDown"), answer(404, "NoSuchKey"), answer(403, "AccessDenied")]
        gone = await store.delete(["a", "b", "c", "d"])
        assert len(gone) == 2
        server.answers = [answer(503, "SlowDown")]
        with pytest.raises(StoreUnavailableError):
            await store.delete([str(number) for number in range(1000)])
        assert len(server.asked) < 50, "a store that is away is not asked a thousand times"


# ---- the marker ----


async def test_a_conflict_with_nothing_there_is_no_marker_of_anothers() -> None:
    """T18: 409 comes as "already exists" and means "somebody else is writing, try again"."""
    nothing = answer(404)
    for conflict in (answer(409, "ConditionalRequestConflict"), answer(412, "PreconditionFailed")):
        async with scripted(nothing, conflict, nothing) as server:
            error = await failure(open_store(url(server), SOON), "create")
            assert type(error) is StoreUnavailableError
            assert [asked.split(" ")[0] for asked in server.asked] == ["HEAD", "PUT", "HEAD"]


async def test_a_conflict_about_our_own_lost_answer_is_resolved_by_reading() -> None:
    """T18: the first try was carried out, its answer lost; the second gets 412."""
    marker = encode_marker(CLUSTER)
    size = f"{PART}Content-Length: {len(marker)}\r\n"
    head = f"HTTP/1.1 200 OK\r\n{size}\r\n".encode()
    whole = f"Content-Range: bytes 0-{len(marker) - 1}/{len(marker)}\r\n"
    found = answer(206, headers=PART + whole, body=marker)
    async with scripted(answer(404), answer(412, "PreconditionFailed"), head, found) as server:
        await claim_store(open_store(url(server), SOON), CLUSTER)
        assert "if-none-match: *" in server.heads[1].lower()


async def test_a_marker_too_large_to_be_one_is_refused() -> None:
    async with scripted(f"HTTP/1.1 200 OK\r\n{PART}Content-Length: 1000000\r\n\r\n".encode()) as server:
        with pytest.raises(StoreRefusedError, match="no marker"):
            await open_store(url(server), SOON).read_marker(MARKER_KEY)


# ---- credentials ----


def test_a_search_for_credentials_that_found_nobody_is_told_as_such() -> None:
    """obstore asks the machine's metadata service last; off a cloud nobody, or anybody, answers there."""
    for said in ("HTTP error: error sending request", "Server returned non-2xx status code: 403 Forbidden: no"):
        error = OSError(f"Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token - {said}")
        assert "no credentials were found" in str(remotes.diagnose(error, "s3://bucket"))
        assert type(remotes.diagnose(error, "s3://bucket")) is StoreRefusedError


def key_of(head: str) -> str:
    return head.partition("Credential=")[2].partition("/")[0] or head.partition("credential=")[2].partition("/")[0]


async def test_credentials_of_a_file_are_read_again_when_they_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setattr(remotes, "REOPEN_S", 0.0)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    file.write_text("[default]\naws_access_key_id = old\naws_secret_access_key = s\naws_session_token = t\n")
    async with scripted(answer(400, "ExpiredToken"), answer(200, headers='ETag: "x"\r\n')) as server:
        store = open_store(url(server), SOON)
        file_before = file.read_text()
        assert type(await failure(store, "put")) is StoreRefusedError
        file.write_text(file_before.replace("old", "new"))
        await store.put("k", b"data")
        await store.put("k", b"data")
        assert [key_of(head) for head in server.heads] == ["old", "new", "new"]
        assert "x-amz-security-token: t" in server.heads[0].lower()


async def test_a_store_that_goes_on_refusing_is_not_opened_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = 0
    connect = remotes.RemoteStore.__init__

    def counting(self: remotes.RemoteStore, open_one: Any, place: str, timeouts: StoreTimeouts) -> None:
        def open_and_count(given: StoreTimeouts) -> Any:
            nonlocal opened
            opened += 1
            return open_one(given)

        connect(self, open_and_count, place, timeouts)

    monkeypatch.setattr(remotes.RemoteStore, "__init__", counting)
    async with scripted(answer(403, "AccessDenied")) as server:
        store = open_store(url(server), SOON)
        for _ in range(20):
            assert type(await failure(store, "put")) is StoreRefusedError
    assert opened == 1


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[default]\naws_access_key_id = a\n", "not the other"),
        ("no section", "cannot be read"),
        ("[other]\naws_access_key_id = a\n", "no profile mine"),
        (None, "not there"),
    ],
)
async def test_a_credentials_file_that_makes_no_sense_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, why: str
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    file = tmp_path / "credentials"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    if "other" in (content or ""):
        monkeypatch.setenv("AWS_PROFILE", "mine")
    with pytest.raises(StoreRefusedError, match=why) as caught:
        await open_store("s3://bucket/?region=us-east-1", SOON).put("k", b"x")
    assert str(file) in str(caught.value)


# ---- a real S3, behind a proxy that is not kind ----


def through(proxy: StoreProxy, s3: VersityGateway, bucket: str, timeouts: StoreTimeouts = SOON) -> ObjectStore:
    return open_store(s3.url(bucket, "p", proxy.endpoint), timeouts)


async def persistent(call: Callable[[], Awaitable[Any]], tries: int = 60) -> Any:
    """As callers do: the same call again, for as long as the outcome is unknown."""
    for _ in range(tries):
        try:
            return await call()
        except (StoreUnavailableError, DamagedObjectError):
            continue
    raise AssertionError(f"not once in {tries} tries")


async def test_what_is_tried_long_enough_gets_there_whatever_the_way_does(s3: VersityGateway, bucket: str) -> None:
    faults = StoreFaults(median_ms=2, p99_ms=20, unsent=0.1, busy=0.1, dropped=0.2, short=0.1)
    with StoreProxy(s3.port, faults, seed=4) as proxy:
        store = through(proxy, s3, bucket)
        contents = {f"c/{number}": random.Random(number).randbytes(5_000) for number in range(15)}
        for key, data in contents.items():
            await persistent(partial(store.put, key, data))
        for key, data in contents.items():
            assert bytes(await persistent(partial(store.get, key, 0, 5_000))) == data
        left = set(contents)
        while left:
            left -= set(await persistent(partial(store.delete, sorted(left))))
        proxy.faults = StoreFaults()
        assert [one async for one in store.list("")] == []
        fates = {fate for _, fate in proxy.counts}
        assert fates >= {"unsent", "busy", "dropped", "short", "passed"}


async def test_a_put_whose_answer_was_lost_is_there(s3: VersityGateway, bucket: str) -> None:
    with StoreProxy(s3.port, StoreFaults(dropped=1.0)) as proxy:
        store = through(proxy, s3, bucket)
        with pytest.raises(StoreUnavailableError):
            await store.put("c/a", b"data")
        proxy.faults = StoreFaults()
        assert bytes(await store.get("c/a", 0, 4)) == b"data"


async def test_a_put_that_hangs_is_given_up_and_carried_out_later(s3: VersityGateway, bucket: str) -> None:
    """T20: it lands after everybody has stopped waiting for it."""
    with StoreProxy(s3.port, StoreFaults(hanging=1.0)) as proxy:
        store = through(proxy, s3, bucket)
        with pytest.raises(StoreUnavailableError, match="answer"):
            await store.put("c/a", b"data")
        assert not (s3.bucket_dir(bucket) / "p" / "c" / "a").exists()
        proxy.faults = StoreFaults()
        async with asyncio.timeout(20):
            while not (s3.bucket_dir(bucket) / "p" / "c" / "a").exists():
                await asyncio.sleep(0.01)


async def test_short_bodies_of_a_real_store_are_noticed(s3: VersityGateway, bucket: str) -> None:
    with StoreProxy(s3.port) as proxy:
        store = through(proxy, s3, bucket)
        await store.put("c/a", bytes(10_000))
        proxy.faults = StoreFaults(short=1.0)
        with pytest.raises((StoreUnavailableError, DamagedObjectError)):
            await store.get("c/a", 0, 10_000)
        proxy.faults = StoreFaults(refused=1.0, methods=frozenset({"GET"}))
        with pytest.raises(StoreRefusedError):
            await store.get("c/a", 0, 10_000)
        await store.put("c/b", b"x")


async def test_a_bucket_that_is_not_there_and_a_wrong_key_are_refused(
    s3: VersityGateway, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreRefusedError, match="NoSuchBucket"):
        await open_store(s3.url("no-such-bucket")).put("k", b"x")
    with pytest.raises(StoreRefusedError, match="NoSuchBucket"):
        await open_store(s3.url("no-such-bucket")).get("k", 0, 1)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreRefusedError, match="secret key"):
        await open_store(s3.url(bucket)).put("k", b"x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(StoreRefusedError, match="access key"):
        await open_store(s3.url(bucket)).put("k", b"x")


async def test_a_gateway_that_stops_and_comes_back_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with VersityGateway(tmp_path) as own:
        for name, value in own.credentials.items():
            monkeypatch.setenv(name, value)
        own.make_bucket("bucket")
        store = open_store(own.url("bucket"), SOON)
        await store.put("c/a", b"data")
        own.pause()
        with pytest.raises(StoreUnavailableError):
            await store.get("c/a", 0, 4)
        own.resume()
        assert bytes(await persistent(lambda: store.get("c/a", 0, 4))) == b"data"
        own.kill()
        with pytest.raises(StoreUnavailableError):
            await store.get("c/a", 0, 4)
        own.start()
        assert bytes(await persistent(lambda: store.get("c/a", 0, 4))) == b"data"


def test_people_are_told_what_the_store_says_to_people_and_not_its_markup() -> None:
    body = (
        '<?xml version="1.0" encoding="UTF-8"?> <Error><Code>NoSuchBucket</Code><Message>The specified bucket does not '
        f"exist.</Message><HostId>{'x' * 500}</HostId></Error>"
    )
    error = OSError(f"Generic S3 error: Server returned non-2xx status code: 404 Not Found: {body}")
    assert str(remotes.diagnose(error, "s3://bkt/sexton.json")) == (
        "s3://bkt/sexton.json: the store refuses (NoSuchBucket: The specified bucket does not exist.). "
        "Make the bucket, or correct cloud.store.url"
    )
