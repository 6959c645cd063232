"""An archive of classes is used for the jars that it was made of, and for no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from sexton.harness import class_archives, jars


@pytest.fixture
def jar_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "build" / "kafka"))
    directory = tmp_path / "jars"
    directory.mkdir()
    (directory / "a.jar").write_bytes(b"classes")
    return directory


def make(jar_dir: Path) -> Path:
    path = class_archives.archive("x", jar_dir)
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_without_an_archive_a_jvm_starts_as_ever(jar_dir: Path) -> None:
    assert class_archives.options("x", jar_dir) == ()


def test_with_an_archive_a_jvm_starts_from_it(jar_dir: Path) -> None:
    path = make(jar_dir)
    assert f"-XX:SharedArchiveFile={path}" in class_archives.options("x", jar_dir)


@pytest.mark.parametrize("name", ["a.jar", "b.jar"])
def test_other_jars_have_no_archive(jar_dir: Path, name: str) -> None:
    make(jar_dir)
    (jar_dir / name).write_bytes(b"other classes")
    assert class_archives.options("x", jar_dir) == ()
