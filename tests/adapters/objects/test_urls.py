"""Addresses of stores, and what is said of those that make no sense."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sexton.adapters.objects import StoreUrlError, open_store
from sexton.adapters.objects.connecting import connect
from sexton.adapters.objects.remote import StoreTimeouts
from sexton.adapters.objects.urls import FolderUrl, RemoteUrl, parse
from sexton.extras import MissingExtraError
from sexton.ports.objects import StoreRefusedError


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("file:///var/lib/objects", FolderUrl("/var/lib/objects")),
        ("file:///var//lib/objects/", FolderUrl("/var/lib/objects")),
        ("file://localhost/x", FolderUrl("/x")),
        ("file:///with%20space", FolderUrl("/with space")),
        ("s3://bucket", RemoteUrl("s3", "bucket", "")),
        ("s3://bucket/a/b/", RemoteUrl("s3", "bucket", "a/b")),
        (
            "s3://bucket/x?endpoint=http://127.0.0.1:7070&region=eu-central-1&style=virtual",
            RemoteUrl(
                "s3", "bucket", "x", {"endpoint": "http://127.0.0.1:7070", "region": "eu-central-1", "style": "virtual"}
            ),
        ),
        ("gs://my_bucket.example.com/p", RemoteUrl("gs", "my_bucket.example.com", "p")),
        ("az://container/p?account=someone", RemoteUrl("az", "container", "p", {"account": "someone"})),
    ],
)
def test_an_address_says_where_a_store_is(url: str, found: FolderUrl | RemoteUrl) -> None:
    assert parse(url) == found


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "without a scheme"),
        ("/var/lib/objects", "without a scheme"),
        ("bucket/prefix", "without a scheme"),
        ("http://host/bucket", "cannot be kept at http://"),
        ("hdfs://host/x", "cannot be kept at hdfs://"),
        ("file://objects/here", "file:///objects/here"),
        ("file:objects", "must be absolute"),
        ("file:///", "no folder for objects"),
        ("file:///a/../../etc", "no folder for objects"),
        ("file:///a?region=x", "no options"),
        ("s3://", "no name of a bucket"),
        ("s3:///prefix", "no name of a bucket"),
        ("s3://b", "no name of a bucket"),
        ("s3://bucket:80/x", "no name of a bucket"),
        ("s3://bucket/a/../b", "no prefix"),
        ("az:///x", "no name of a container"),
        ("s3://bucket?regoin=x", "no option 'regoin': it has endpoint, region, style"),
        ("s3://bucket?account=x", "no option 'account'"),
        ("s3://bucket?region=eu&region=us", "twice"),
        ("s3://bucket?region", "not a list of options"),
        ("s3://bucket?region=", "no region"),
        ("s3://bucket?style=both", "path or virtual"),
        ("s3://bucket?endpoint=127.0.0.1:7070", "http://host:port"),
        ("s3://bucket?endpoint=http://127.0.0.1:x", "http://host:port"),
        ("s3://bucket?endpoint=http://a:b@127.0.0.1", "neither credentials nor options"),
        ("az://container?account=No-Name", "no account"),
        ("s3://bucket/x#part", "#part"),
        ("s3://[half", "not a URL"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused_with_what_does(url: str, why: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        open_store(url)
    assert why in str(caught.value)
    assert "file:///path" in caught.value.remedy
    assert caught.value.exit_code == 78


def test_an_address_with_a_secret_is_refused_and_not_repeated() -> None:
    with pytest.raises(StoreUrlError) as caught:
        open_store("s3://key:very-secret@bucket/x")
    assert "very-secret" not in str(caught.value)
    assert "environment" in caught.value.remedy


def test_opening_sends_nothing_and_needs_nobody() -> None:
    """T10: a broker starts without its store."""
    for url in ("s3://bucket/x?endpoint=http://127.0.0.1:1", "gs://bucket", "az://container", "file:///no/such/folder"):
        assert open_store(url).place


def test_what_the_environment_lacks_is_said_when_the_store_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreRefusedError, match=r"cannot be opened.*[Aa]ccount"):
        connect(RemoteUrl("az", "container", ""), StoreTimeouts())


def test_without_the_extra_a_folder_opens_and_a_remote_store_says_what_to_install() -> None:
    program = """
import sys
sys.modules["obstore"] = None
from sexton.adapters.objects import open_store
from sexton.extras import MissingExtraError
from sexton.ports.objects import StoreRefusedError
open_store("file:///tmp/x")
try:
    open_store("s3://bucket")
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "a store at s3:// needs obstore" in done.stdout, done.stderr
    assert "pip install 'sexton[cloud]', or keep the objects in a folder" in done.stdout
    assert MissingExtraError.exit_code == 69
