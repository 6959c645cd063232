"""How each client is told who it is and whom to trust: what one file says by Java's names, in each client's words.

The file has been read already (`client.security`), so certificates and keys are text here, and whatever is wrong with
it was told. What a client cannot do with it `check` tells before anything is started. Nothing of this is ever written
down: it goes to clients through their pipes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sexton.client.security.properties import Security
    from sexton.ports.tls import TlsSettings

JAVA_PEM_SINCE: Final = (2, 7)
"""KIP-651."""

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_CERTIFICATE: Final = "CERTIFICATE"
_PKCS8: Final = ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY")
_ENCRYPTED: Final = re.compile(r"BEGIN ENCRYPTED PRIVATE KEY|^Proc-Type: 4,ENCRYPTED", re.MULTILINE)


def blocks_of(pem: str) -> tuple[list[str], list[str]]:
    """Returns (private keys, certificates), each as it stands there."""
    blocks = [(each[1], each[0]) for each in _BLOCK.finditer(pem)]
    certificates = [text for kind, text in blocks if kind == _CERTIFICATE]
    return [text for kind, text in blocks if kind.endswith("PRIVATE KEY")], certificates


# ---- what a client cannot do


def check(client: str, security: Security) -> None:
    """Raises BadSecurityError, which names the property and the client."""
    from sexton.client.security.errors import BadSecurityError

    if security.tls is None:
        return
    for place, what, remedy in _lacks(client, security.tls):
        raise BadSecurityError(f"{client} {what}", place, f"{remedy}, or leave that client out: --client")


def _lacks(client: str, tls: TlsSettings) -> list[tuple[str, str, str]]:
    """Property, what is wrong with it, what to do."""
    from sexton.verify.clients import known

    keys, certificates = blocks_of(tls.own_pem)
    found = []
    if client == "confluent-kafka" and len(certificates) > 1:
        what = "shows one certificate, and none of those that vouch for it"
        found.append(("ssl.keystore.location", what, "Have the broker trust whoever signed the first"))
    version = known.java_version(client)
    if version and tuple(int(each) for each in version.split(".")[:2]) < JAVA_PEM_SINCE:
        since = ".".join(map(str, JAVA_PEM_SINCE))
        for place, text in (("ssl.truststore.location", tls.trusted_pem), ("ssl.keystore.location", tls.own_pem)):
            if text:
                found.append((place, f"does not read PEM, as Java's client has since {since}", "Name a newer one"))
    if client.partition("-")[0] == known.JAVA and any(_kind(key) not in _PKCS8 for key in keys):
        remedy = "Convert the key: openssl pkcs8 -topk8 -nodes -in KEY -out NEW"
        found.append(("ssl.keystore.location", "reads private keys in PKCS8 only", remedy))
    if client == known.FRANZ_GO and any(_ENCRYPTED.search(key) for key in keys):
        what = "reads no private key that is encrypted"
        found.append(("ssl.key.password", what, "Decrypt it: openssl pkcs8 -in KEY -out NEW"))
    return found


def _kind(block: str) -> str:
    found = _BLOCK.match(block)
    assert found is not None
    return found[1]


# ---- the same in each client's words


def protocol_of(security: Security) -> str:
    transport = "PLAINTEXT" if security.tls is None else "SSL"
    return transport if security.login is None else f"SASL_{transport}"


def librdkafka(security: Security | None) -> dict[str, Any]:
    if security is None:
        return {}
    found: dict[str, Any] = {"security.protocol": protocol_of(security)}
    if (login := security.login) is not None:
        found |= {"sasl.mechanism": login.mechanism, "sasl.username": login.user, "sasl.password": login.password}
    if (tls := security.tls) is not None:
        found["ssl.endpoint.identification.algorithm"] = "https" if tls.checks_host else "none"
        if tls.trusted_pem:
            found["ssl.ca.pem"] = tls.trusted_pem
        (key, *_), (certificate, *_) = (each or [""] for each in blocks_of(tls.own_pem))
        if tls.own_pem:
            found |= {"ssl.certificate.pem": certificate, "ssl.key.pem": key}
        if tls.own_pem and tls.key_password:
            found["ssl.key.password"] = tls.key_password
    return found


def python(security: Security | None) -> dict[str, Any]:
    """For aiokafka and kafka-python, which have the same words for it."""
    if security is None:
        return {}
    found: dict[str, Any] = {"security_protocol": protocol_of(security)}
    if (login := security.login) is not None:
        found |= {
            "sasl_mechanism": login.mechanism,
            "sasl_plain_username": login.user,
            "sasl_plain_password": login.password,
        }
    if security.tls is not None:
        from sexton.adapters.tls import make_context

        found["ssl_context"] = make_context(security.tls)
    return found


def java(security: Security | None) -> dict[str, str | int | bool]:
    """By its own names again, but for files: they have been read."""
    if security is None:
        return {}
    found: dict[str, str | int | bool] = {"security.protocol": protocol_of(security)}
    if (login := security.login) is not None:
        kind = "plain.Plain" if login.mechanism == "PLAIN" else "scram.Scram"
        module = f"org.apache.kafka.common.security.{kind}LoginModule"
        said = f"username={_quoted(login.user)} password={_quoted(login.password)}"
        found |= {"sasl.mechanism": login.mechanism, "sasl.jaas.config": f"{module} required {said};"}
    if (tls := security.tls) is not None:
        found["ssl.endpoint.identification.algorithm"] = "https" if tls.checks_host else ""
        if tls.trusted_pem:
            certificates = "\n".join(blocks_of(tls.trusted_pem)[1])
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": certificates}
        if tls.own_pem:
            keys, chain = blocks_of(tls.own_pem)
            found["ssl.keystore.type"] = "PEM"
            found |= {"ssl.keystore.key": "\n".join(keys), "ssl.keystore.certificate.chain": "\n".join(chain)}
        if tls.own_pem and tls.key_password:
            found["ssl.key.password"] = tls.key_password
    return found


def _quoted(text: str) -> str:
    """As the tokenizer of JAAS reads it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def franz(security: Security | None) -> dict[str, Any]:
    """For go/secure.go."""
    if security is None:
        return {}
    found: dict[str, Any] = {}
    if (login := security.login) is not None:
        found["login"] = {"mechanism": login.mechanism, "user": login.user, "password": login.password}
    if (tls := security.tls) is not None:
        keys, chain = blocks_of(tls.own_pem)
        found["tls"] = {
            "trusted": "\n".join(blocks_of(tls.trusted_pem)[1]),
            "chain": "\n".join(chain),
            "key": "\n".join(keys),
            "checks_host": tls.checks_host,
        }
    return {"security": found}
