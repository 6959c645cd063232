"""URLs of stores: what they say, and what is wrong with those that say nothing.

    file:///path
    s3://bucket/prefix?region=…&endpoint=…&style=path|virtual
    gs://bucket/prefix
    az://container/prefix?account=…&endpoint=…

A secret has no place in a URL: it would be in logs, in `sexton cloud status`, and in the settings of all brokers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from sexton.errors import SextonError

FORMS: Final = "Use file:///path, s3://bucket/prefix?region=…&endpoint=…, gs://bucket/prefix or az://container/prefix"
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("endpoint", "region", "style"),
    "gs": ("endpoint",),
    "az": ("account", "endpoint"),
}
STYLES: Final = ("path", "virtual")

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}[A-Za-z0-9]", re.ASCII)
"""What S3, GCS and Azure have in common, and a little more: each knows its own rules best."""

_REGION: Final = re.compile(r"[a-z0-9-]{2,40}", re.ASCII)
_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}", re.ASCII)


class StoreUrlError(SextonError):
    """The URL of the object store is invalid. Correct the config."""

    exit_code: ClassVar[int] = 78


@dataclass(frozen=True, slots=True)
class FolderUrl:
    path: str


@dataclass(frozen=True, slots=True)
class RemoteUrl:
    scheme: str
    bucket: str
    prefix: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """How errors name it."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")


def parse(url: str) -> FolderUrl | RemoteUrl:
    try:
        parts = urlsplit(url)
        has_secret = "@" in parts.netloc
    except ValueError as error:
        raise StoreUrlError(f"the address of the object store is not a URL ({error})", remedy=FORMS) from None
    if has_secret:
        raise StoreUrlError(
            "the address of the object store has a user or a password in it",
            remedy="Put credentials into the environment or into the store's own credentials file",
        )
    if parts.fragment:
        raise _wrong(url, f"nothing is known of #{parts.fragment}")
    if parts.scheme == "file":
        return _folder(url, parts.netloc, parts.path, parts.query)
    if parts.scheme not in OPTIONS:
        shown = f"{parts.scheme}://" if parts.scheme else "an address without a scheme"
        raise _wrong(url, f"objects cannot be kept at {shown}")
    if not _BUCKET.fullmatch(parts.netloc):
        what = "container" if parts.scheme == "az" else "bucket"
        raise _wrong(url, f"{parts.netloc!r} is no name of a {what}")
    return RemoteUrl(parts.scheme, parts.netloc, _prefix(url, parts.path), _options(url, parts.scheme, parts.query))


def _folder(url: str, host: str, path: str, query: str) -> FolderUrl:
    path = unquote(path)
    if host not in ("", "localhost"):
        raise _wrong(url, f"{host!r} is taken for a host: a path begins with a third slash, file:///{host}{path}")
    if not path.startswith("/") or "\0" in path:
        raise _wrong(url, "the path of the folder must be absolute")
    if query:
        raise _wrong(url, f"a folder has no options, and here are some: {query}")
    names = [name for name in path.split("/") if name]
    if not names or any(name in (".", "..") for name in names):
        raise _wrong(url, f"{path!r} is no folder for objects")
    return FolderUrl("/" + "/".join(names))


def _prefix(url: str, path: str) -> str:
    names = [name for name in unquote(path).split("/") if name]
    if any(name in (".", "..") or not name.isprintable() for name in names):
        raise _wrong(url, f"{path!r} is no prefix of keys")
    return "/".join(names)


def _options(url: str, scheme: str, query: str) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise _wrong(url, f"{query!r} is not a list of options") from None
    options = dict(pairs)
    if len(options) != len(pairs):
        raise _wrong(url, "an option is there twice")
    for name, value in options.items():
        if name not in OPTIONS[scheme]:
            raise _wrong(url, f"{scheme}:// has no option {name!r}: it has {', '.join(OPTIONS[scheme])}")
        if fault := _fault(name, value):
            raise _wrong(url, f"{name}={value}: {fault}")
    return options


def _fault(name: str, value: str) -> str:
    if name == "endpoint":
        return _endpoint_fault(value)
    if name == "style":
        return "" if value in STYLES else f"it must be {' or '.join(STYLES)}"
    pattern = _REGION if name == "region" else _ACCOUNT
    return "" if pattern.fullmatch(value) else f"this is no {name}"


def _endpoint_fault(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_right = parts.scheme in ("http", "https") and parts.hostname is not None and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right:
        return "an endpoint is http://host:port or https://host:port"
    if "@" in parts.netloc or parts.query or parts.fragment:
        return "an endpoint has neither credentials nor options"
    return ""


def _wrong(url: str, what: str) -> StoreUrlError:
    return StoreUrlError(what, url, FORMS)
