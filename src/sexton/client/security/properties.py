"""A client's properties as Kafka names them (`--command-config client.properties`), as far as they are about security.

Files that they name are read here and now: a mistake shows at once, and Spark's tasks on other machines need no files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sexton.client.security.errors import BadSecurityError
from sexton.client.security.login import MECHANISMS, PLAIN, Login
from sexton.client.security.scram import ALGORITHMS
from sexton.ports.tls import TlsSettings

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

MODULES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": (PLAIN,),
    "org.apache.kafka.common.security.scram.ScramLoginModule": tuple(ALGORITHMS),
}

JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
PEM: Final = "PEM"

_JAAS: Final = re.compile(r"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)\s*(?P<options>.*?)\s*;\s*", re.DOTALL)
_OPTION: Final = re.compile(r"""\s*([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""", re.DOTALL)

_PEM_LINE: Final = re.compile(r"-----(?:BEGIN|END)(?:\n[A-Z0-9]+)+-----")

ReadFile = Callable[[str], bytes]
"""Raises OSError."""


@dataclass(frozen=True, slots=True)
class Security:
    login: Login | None = None
    tls: TlsSettings | None = None


OPEN: Final = Security()
"""PLAINTEXT: neither login nor encryption."""


def security_of(properties: Mapping[str, str], read_file: ReadFile) -> Security:
    """Raises BadSecurityError, which names the property."""
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        raise _bad(f"{protocol} is no protocol", "security.protocol", f"Known are {', '.join(PROTOCOLS)}")
    return Security(
        login=_login(properties) if protocol.startswith("SASL_") else None,
        tls=_tls(properties, read_file) if protocol.endswith("SSL") else None,
    )


# ---- SASL


def _login(properties: Mapping[str, str]) -> Login:
    mechanism = properties.get("sasl.mechanism", "GSSAPI").strip()
    if mechanism not in MECHANISMS:
        what = f"we cannot log in by {mechanism}"
        if "sasl.mechanism" not in properties:
            what = "it is not set, and we cannot log in by GSSAPI, which it then is"
        raise _bad(what, "sasl.mechanism", f"Known are {', '.join(MECHANISMS)}")
    text = properties.get("sasl.jaas.config", "")
    if not text.strip():
        module = next(name for name, known in MODULES.items() if mechanism in known)
        raise _bad("it is not set", "sasl.jaas.config", f'Write {module} required username="..." password="...";')
    module, options = parse_jaas(text)
    known = MODULES.get(module)
    if known is None:
        raise _bad(f"we do not have {module}", "sasl.jaas.config", f"Known are {' and '.join(MODULES)}")
    if mechanism not in known:
        raise _bad(f"{module.rpartition('.')[2]} is not for {mechanism}", "sasl.jaas.config", "Make the two agree")
    missing = [name for name in ("username", "password") if not options.get(name)]
    if missing:
        raise _bad(f"{' and '.join(missing)} missing", "sasl.jaas.config", 'Write username="..." password="..."')
    return Login(mechanism, options["username"], options["password"])


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """Returns (login module, options) of the one entry that the property may have. Says nothing of what is in it if it
    is wrong: there are passwords."""
    whole = _JAAS.fullmatch(text)
    if whole is None:
        raise _bad("it is no login module", "sasl.jaas.config", "Write MODULE required NAME=VALUE ...; with its ;")
    options: dict[str, str] = {}
    position, rest = 0, whole["options"]
    while position < len(rest):
        option = _OPTION.match(rest, position)
        if option is None:
            number = len(options) + 1
            raise _bad(f"option {number} is not NAME=VALUE", "sasl.jaas.config", 'Put values in "..."')
        quoted = option[2] if option[2] is not None else option[3]
        options[option[1]] = option[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        position = option.end()
    return whole["module"], options


# ---- TLS


def _tls(properties: Mapping[str, str], read_file: ReadFile) -> TlsSettings:
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("", "https"):
        raise _bad(f"{algorithm} is unknown", "ssl.endpoint.identification.algorithm", "Write https, or nothing")
    return TlsSettings(
        trusted_pem=_trusted(properties, read_file),
        own_pem=_own(properties, read_file),
        key_password=properties.get("ssl.key.password", properties.get("ssl.keystore.password", "")),
        checks_host=algorithm == "https",
    )


def _trusted(properties: Mapping[str, str], read_file: ReadFile) -> str:
    inline = properties.get("ssl.truststore.certificates", "")
    if inline.strip():
        return _one_line_pem(inline)
    return _store(properties, "ssl.truststore", read_file)


def _own(properties: Mapping[str, str], read_file: ReadFile) -> str:
    chain, key = properties.get("ssl.keystore.certificate.chain", ""), properties.get("ssl.keystore.key", "")
    if bool(chain.strip()) != bool(key.strip()):
        missing = "ssl.keystore.key" if chain.strip() else "ssl.keystore.certificate.chain"
        raise _bad("it is not set", missing, "A certificate and its key go together")
    if chain.strip():
        return f"{_one_line_pem(key)}\n{_one_line_pem(chain)}\n"
    return _store(properties, "ssl.keystore", read_file)


def _store(properties: Mapping[str, str], name: str, read_file: ReadFile) -> str:
    place = f"{name}.location"
    path = properties.get(place, "").strip()
    if not path:
        return ""
    try:
        content = read_file(path)
    except OSError as error:
        raise _bad(f"{path} cannot be read: {error.strerror or error}", place, "Check path and permissions") from None
    if b"-----BEGIN" not in content:
        raise _not_pem(content, name, path)
    return content.decode("ascii", errors="replace")


def _not_pem(content: bytes, name: str, path: str) -> BadSecurityError:
    is_jks = content.startswith(JKS_MAGIC)
    kind = "a JKS store" if is_jks else "a PKCS12 store" if content[:1] == b"\x30" else "no PEM file"
    steps = []
    source = path
    if is_jks:
        source = f"{path}.p12"
        steps.append(f"keytool -importkeystore -srckeystore {path} -destkeystore {source} -deststoretype PKCS12")
    only = "-nokeys " if name.endswith("truststore") else "-nodes "
    steps.append(f"openssl pkcs12 -in {source} {only}-out {path}.pem")
    remedy = f"Convert it: {' && '.join(steps)}; then set {name}.location={path}.pem and {name}.type=PEM"
    if kind == "no PEM file":
        remedy = "Name a file with -----BEGIN CERTIFICATE----- in it"
    return _bad(f"{path} is {kind}, and we read PEM", f"{name}.location", remedy)


def _one_line_pem(text: str) -> str:
    """In a property a certificate is often one line, with blanks where lines ended: Kafka reads that."""
    whole = re.sub(r"\s+", "\n", text.strip())
    return _PEM_LINE.sub(lambda line: line[0].replace("\n", " "), whole)


def _bad(what: str, place: str, remedy: str) -> BadSecurityError:
    return BadSecurityError(what, place, remedy)
