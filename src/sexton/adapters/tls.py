"""TLS over any other network: bytes are encrypted in memory, between a receiver and the connection below it.

For clients. Brokers of ours listen without it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from collections.abc import Callable, Sequence
from typing import Final

from sexton.ports.disk import FileSlice
from sexton.ports.network import Connection, Listener, Network, Part, Receiver
from sexton.ports.tls import TlsFailedError, TlsSettings

READ_BYTES: Final = 1 << 18

CHECK_TRUST: Final = "Name the authority that signed it in ssl.truststore.location (PEM)"
CHECK_HOST: Final = (
    "Connect by a name that the certificate has, or set ssl.endpoint.identification.algorithm to nothing if you must"
)
CHECK_PORT: Final = "Set security.protocol to PLAINTEXT or SASL_PLAINTEXT, or give the port that speaks TLS"
CHECK_OWN: Final = "The broker asks for a certificate that it trusts: set ssl.keystore.location (PEM)"
CHECK_KEY: Final = "Check ssl.keystore.*: a private key, its certificate, and ssl.key.password if it has one"


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """Raises TlsFailedError if certificates or keys are not what they should be."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_host
    if settings.trusted_pem:
        try:
            context.load_verify_locations(cadata=settings.trusted_pem)
        except (ssl.SSLError, ValueError) as error:
            raise TlsFailedError(
                f"the trusted certificates cannot be read: {_reason(error)}", "", CHECK_TRUST
            ) from error
    else:
        context.load_default_certs()
    if settings.own_pem:
        _load_own(context, settings)
    return context


def _load_own(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """OpenSSL reads these from a file only: one that is gone before anybody connects."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # mode 0600
        file.write(settings.own_pem)
        file.flush()
        try:
            context.load_cert_chain(file.name, password=settings.key_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            what = f"our certificate or its key cannot be read: {_reason(error)}"
            raise TlsFailedError(what, "", CHECK_KEY) from error


class TlsNetwork:
    """Implements `ports.network.Network`."""

    def __init__(self, below: Network, context: ssl.SSLContext) -> None:
        self._below = below
        self._context = context

    async def listen(self, host: str, port: int, accept: Callable[[Connection], Receiver]) -> Listener:
        raise NotImplementedError("only clients speak TLS here")

    async def connect(self, host: str, port: int, receiver: Callable[[Connection], Receiver]) -> TlsConnection:
        made: list[TlsConnection] = []

        def secured(connection: Connection) -> TlsConnection:
            made.append(TlsConnection(connection, self._context, host))
            return made[0]

        await self._below.connect(host, port, secured)
        connection = made[0]
        try:
            await connection.shake_hands()
        except BaseException:
            connection.close()
            raise
        connection.start(receiver(connection))
        return connection


class TlsConnection:
    """A `Connection` for whoever uses it, and the `Receiver` of the connection below."""

    def __init__(self, below: Connection, context: ssl.SSLContext, host: str) -> None:
        self._below = below
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._secured: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receiver: Receiver | None = None
        self._end: Exception | None = None
        self._has_ended = False

    # The handshake

    async def shake_hands(self) -> None:
        """Raises TlsFailedError, or OSError if the other side goes away meanwhile."""
        self._go_on_shaking()
        await self._secured

    def _go_on_shaking(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send_below()
            return
        except ssl.SSLError as error:
            self._send_below()  # the alert, which tells the other side why
            self._fail(_failure(error, self.peer))
            return
        self._send_below()
        if not self._secured.done():
            self._secured.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._end = error
        if not self._secured.done():
            self._secured.set_exception(error)

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._deliver()
        if self._has_ended:
            receiver.closed(self._end)

    # As a receiver of the connection below

    def received(self, data: memoryview) -> None:
        self._incoming.write(data)
        if not self._secured.done():
            self._go_on_shaking()
        if self._receiver is not None:
            self._deliver()

    def _deliver(self) -> None:
        assert self._receiver is not None
        while self._end is None:
            try:
                size = int(self._tls.read(READ_BYTES, self._buffer))
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                self._below.close()
                break
            except ssl.SSLError as error:
                self._end = _failure(error, self.peer)
                self._below.close()
                break
            if not size:
                break
            self._receiver.received(self._buffer[:size])
        self._send_below()  # answers of the protocol itself, as to a change of keys

    def writable(self) -> None:
        if self._receiver is not None:
            self._receiver.writable()

    def closed(self, error: Exception | None) -> None:
        self._has_ended = True
        self._end = self._end or error
        if not self._secured.done():
            reset = ConnectionResetError("the other side closed the connection during the TLS handshake")
            self._secured.set_exception(self._end or reset)
        if self._receiver is not None:
            self._receiver.closed(self._end)

    # As a connection

    @property
    def peer(self) -> str:
        return self._below.peer

    @property
    def local(self) -> str:
        return self._below.local

    @property
    def backlog_bytes(self) -> int:
        return self._below.backlog_bytes

    def send(self, parts: Sequence[Part]) -> None:
        if self._has_ended or self._end is not None:
            return
        for part in parts:
            content = part.file.read(part.position, part.size_bytes) if isinstance(part, FileSlice) else part
            if len(content):
                self._tls.write(content)
        self._send_below()

    def _send_below(self) -> None:
        if self._outgoing.pending:
            self._below.send([self._outgoing.read()])

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._below.resume_reading()

    def close(self) -> None:
        self._below.close()


def _failure(error: ssl.SSLError, place: str) -> TlsFailedError:
    reason = _reason(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        is_name = "ostname" in error.verify_message or "IP address" in error.verify_message
        what = f"the broker's certificate is not accepted: {error.verify_message}"
        return TlsFailedError(what, place, CHECK_HOST if is_name else CHECK_TRUST)
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return TlsFailedError("the broker does not speak TLS on this port", place, CHECK_PORT)
    if "ALERT" in (error.reason or "") and "CERTIFICATE" in (error.reason or ""):
        return TlsFailedError(f"the broker does not accept our certificate, or misses one: {reason}", place, CHECK_OWN)
    return TlsFailedError(f"TLS failed: {reason}", place, "Compare ssl.* with the broker's listener")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    if reason:
        return str(reason).replace("_", " ").lower()
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error)
