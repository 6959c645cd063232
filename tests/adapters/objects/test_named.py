"""Objects by name: one, all below a prefix, in a folder and in a real S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from sexton.adapters.objects.blocking import BlockingStore
from sexton.adapters.objects.named import find_objects, read_footer
from sexton.harness.versitygw import VersityGateway
from sexton.ports.object_names import MARKER_KEY
from sexton.ports.objects import ObjectMissingError
from tests.records.objects.samples import SETTLED, SMALL


@pytest.fixture(params=["folder", "s3"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Of the store, and of the prefix under which its objects are."""
    if request.param == "s3":
        name: str = request.getfixturevalue("bucket")
        gateway: VersityGateway = request.getfixturevalue("s3")
        url = gateway.url(name, "")
        place, _, query = url.partition("?")
        return url, f"{place.rstrip('/')}/some/prefix?{query}"
    (tmp_path / MARKER_KEY).write_bytes(b"{}")
    return f"file://{tmp_path}", f"file://{tmp_path}/some/prefix"


def put(url: str, key: str, data: bytes) -> None:
    upload = BlockingStore(url).upload(key)
    upload.write(memoryview(data))
    upload.finish()


def test_a_prefix_names_all_objects_below_it_and_nothing_else(urls: tuple[str, str]) -> None:
    url, prefix = urls
    for key, data in {"l0/ab/one": SMALL, "l1/cd/two": SETTLED, "sexton.json": b"{}"}.items():
        put(url, f"some/prefix/{key}", data)
    put(url, "some/other/one", SMALL)
    footers = [read_footer(store, key) for store, key in find_objects(prefix)]
    assert [len(footer.runs) for footer in footers] == [3, 2]
    place, _, query = prefix.partition("?")
    named = f"{place}/l1/cd/two" + (f"?{query}" if query else "")
    assert [len(read_footer(store, key).runs) for store, key in find_objects(named)] == [2]


def test_an_object_that_is_gone_is_told(urls: tuple[str, str]) -> None:
    url, _ = urls
    with pytest.raises(ObjectMissingError):
        read_footer(BlockingStore(url), "some/prefix/l0/ab/none")
