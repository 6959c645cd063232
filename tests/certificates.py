"""Certificates for tests, made by the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    path: Path
    """The private key, and the certificate."""


class Authority:
    """One that nobody trusts but who is told to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key, self._certificate = folder / "ca.key", folder / "ca.pem"
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(self._key))
        subject = ("-subj", "/CN=authority of a test", "-days", "2")
        _openssl("req", "-x509", "-key", str(self._key), "-out", str(self._certificate), *subject)

    @property
    def pem(self) -> str:
        return self._certificate.read_text()

    @property
    def path(self) -> Path:
        return self._certificate

    def issue(self, name: str) -> Certificate:
        """For 127.0.0.1."""
        key, request, signed = (self._folder / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
        whole, extensions = self._folder / f"{name}.pem", self._folder / f"{name}.ext"
        extensions.write_text("subjectAltName=IP:127.0.0.1\n")
        # Java reads private keys in PKCS8 only.
        curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        _openssl("genpkey", *curve, "-out", str(key))
        _openssl("req", "-new", "-key", str(key), "-out", str(request), "-subj", f"/CN={name}")
        by = ("-CA", str(self._certificate), "-CAkey", str(self._key), "-CAcreateserial", "-days", "2")
        _openssl("x509", "-req", "-in", str(request), "-out", str(signed), *by, "-extfile", str(extensions))
        whole.write_text(key.read_text() + signed.read_text())
        return Certificate(whole)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
