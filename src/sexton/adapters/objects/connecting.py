"""What obstore is told when a store is opened: options, timeouts, and where credentials are."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sexton.adapters.objects.remote import StoreTimeouts
from sexton.adapters.objects.urls import RemoteUrl
from sexton.ports.objects import StoreRefusedError

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, ObjectStore, RetryConfig, S3Config

KEY_VARIABLES: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
FILE_VARIABLE: Final = "AWS_SHARED_CREDENTIALS_FILE"
FILE_DEFAULT: Final = "~/.aws/credentials"
FILE_FIELDS: Final = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


def connect(url: RemoteUrl, timeouts: StoreTimeouts) -> ObjectStore:
    """Opens the store with the credentials that are there now. Sends nothing. Raises StoreRefusedError: what the URL
    leaves out may be in the environment, or not."""
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    prefix = url.prefix or None
    client = _client(url, timeouts)
    once: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(milliseconds=timeouts.longest_ms)}
    try:
        match url.scheme:
            case "s3":
                config = _s3(url, os.environ)
                return S3Store(url.bucket, prefix=prefix, config=config, client_options=client, retry_config=once)
            case "gs":
                google: GCSConfig = {"base_url": url.options["endpoint"]} if "endpoint" in url.options else {}
                return GCSStore(url.bucket, prefix=prefix, config=google, client_options=client, retry_config=once)
            case _:
                azure = _azure(url)
                return AzureStore(url.bucket, prefix=prefix, config=azure, client_options=client, retry_config=once)
    except (BaseError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise StoreRefusedError(
            f"the store cannot be opened ({said})", url.place, "Correct cloud.store.url or the environment"
        ) from error


def _client(url: RemoteUrl, timeouts: StoreTimeouts) -> ClientConfig:
    return {
        "allow_http": url.options.get("endpoint", "").startswith("http://"),
        "timeout": timedelta(milliseconds=timeouts.longest_ms),
        "connect_timeout": timedelta(milliseconds=timeouts.connect_ms),
    }


def _s3(url: RemoteUrl, environment: Mapping[str, str]) -> S3Config:
    config: S3Config = {"disable_bulk_delete": True}
    if "endpoint" in url.options:
        config["endpoint"] = url.options["endpoint"]
    if "region" in url.options:
        config["region"] = url.options["region"]
    if url.options.get("style") == "virtual":
        config["virtual_hosted_style_request"] = True
    if not all(environment.get(name) for name in KEY_VARIABLES):
        key_id, secret, token = shared_credentials(environment)
        if key_id:
            config["access_key_id"], config["secret_access_key"] = key_id, secret
        if token:
            config["session_token"] = token
    return config


def _azure(url: RemoteUrl) -> AzureConfig:
    config: AzureConfig = {}
    if "account" in url.options:
        config["account_name"] = url.options["account"]
    if "endpoint" in url.options:
        config["endpoint"] = url.options["endpoint"]
    return config


def shared_credentials(environment: Mapping[str, str]) -> tuple[str, str, str]:
    """Returns key id, secret key and session token of the profile in AWS's shared credentials file, which obstore does
    not read; empty if there is no file. A file that cannot be read is refused, not passed over."""
    named = environment.get(FILE_VARIABLE)
    path = Path(named or FILE_DEFAULT).expanduser()
    profile = environment.get("AWS_PROFILE") or "default"
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text())
    except FileNotFoundError:
        if named:
            raise _refused(f"{FILE_VARIABLE} names a file that is not there", path) from None
        return "", "", ""
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise _refused(f"the credentials cannot be read ({str(error).splitlines()[0]})", path) from None
    if not parser.has_section(profile):
        if "AWS_PROFILE" in environment:
            raise _refused(f"there is no profile {profile}", path)
        return "", "", ""
    key_id, secret, token = (parser.get(profile, name, fallback="").strip() for name in FILE_FIELDS)
    if bool(key_id) != bool(secret):
        raise _refused(f"profile {profile} has a key id or a secret key, and not the other", path)
    return key_id, secret, token


def _refused(what: str, path: Path) -> StoreRefusedError:
    return StoreRefusedError(what, str(path), "Correct the file; it is read again without a restart")
