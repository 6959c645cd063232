"""SCRAM: the RFCs' own conversations, and other sides that are not what they say."""

from __future__ import annotations

import base64

import pytest

from sexton.client.security.errors import LoginFailedError
from sexton.client.security.scram import Scram

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def begun(user: str = "user", password: str = "pencil") -> Scram:
    scram = Scram("SCRAM-SHA-256", user, password, NONCE)
    scram.first()
    return scram


def test_the_conversation_of_rfc_7677() -> None:
    scram = Scram("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert scram.final(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert not scram.is_done
    scram.verify(SERVER_FINAL)
    assert scram.is_done


def test_sha_512_logs_in_at_a_server_that_follows_the_rfc() -> None:
    """No RFC has a conversation for it: the server's side is computed here, from the text of RFC 5802."""
    import hashlib
    import hmac

    scram = Scram("SCRAM-SHA-512", "user", "pencil", NONCE)
    first = scram.first()[3:]
    salt = b"0123456789"
    server_first = b"r=" + NONCE.encode() + b"more,s=" + base64.b64encode(salt) + b",i=8192"
    final = scram.final(server_first)
    without_proof, _, proof = final.rpartition(b",p=")
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", salt, 8192)
    signed = b",".join([first, server_first, without_proof])
    client_key = hmac.new(salted, b"Client Key", "sha512").digest()
    signature = hmac.new(hashlib.sha512(client_key).digest(), signed, "sha512").digest()
    assert bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True)) == client_key
    server_key = hmac.new(salted, b"Server Key", "sha512").digest()
    scram.verify(b"v=" + base64.b64encode(hmac.new(server_key, signed, "sha512").digest()))
    assert scram.is_done


def test_commas_and_equals_signs_in_names_are_escaped() -> None:
    assert Scram("SCRAM-SHA-256", "a,b=c", "x", "n").first() == b"n,,n=a=2Cb=3Dc,r=n"


@pytest.mark.parametrize(
    ("server_first", "why"),
    [
        (SERVER_FIRST.replace(b"rOpr", b"xxxx"), "nonce"),
        (b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (SERVER_FIRST.replace(b"i=4096", b"i=1000"), "1000 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=99999999999"), "iterations"),
        (SERVER_FIRST.replace(b",i=4096", b""), "no iterations"),
        (SERVER_FIRST.replace(b"W22Z", b"!!!!"), "base64"),
        (SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="), "salt"),
        (b"\xff\xfe", "UTF-8"),
        (b"", "nonce"),
    ],
)
def test_a_first_answer_that_is_none_is_refused(server_first: bytes, why: str) -> None:
    with pytest.raises(LoginFailedError, match=why):
        begun().final(server_first)


@pytest.mark.parametrize("server_final", [b"v=AAAA", b"", b"v=!!", SERVER_FINAL.replace(b"6rri", b"7rri")])
def test_a_server_that_does_not_know_the_password_is_refused(server_final: bytes) -> None:
    scram = begun()
    scram.final(SERVER_FIRST)
    with pytest.raises(LoginFailedError):
        scram.verify(server_final)


def test_an_error_of_the_server_is_told() -> None:
    scram = begun()
    scram.final(SERVER_FIRST)
    with pytest.raises(LoginFailedError, match="invalid-proof"):
        scram.verify(b"e=invalid-proof")


def test_steps_out_of_order_are_a_bug() -> None:
    with pytest.raises(RuntimeError):
        Scram("SCRAM-SHA-256", "user", "pencil", NONCE).final(SERVER_FIRST)
    scram = begun()
    with pytest.raises(RuntimeError):
        scram.verify(SERVER_FINAL)
