"""Classes as one JVM has read and checked them, in a file: the next JVM starts from it with half the CPU time.

This is the JVM's own class-data sharing. An archive fits one Java and one list of jars, and a JVM ignores what does not
fit; both are in the archive's name, so that there is no archive rather than a wrong one. `warm_jvms` makes them.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sexton.harness import jars

SILENCE: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""A JVM warns about classes that cannot be archived, and about an archive that it does not use: on standard output,
where a tool's answer is expected."""


def spark_jar_dir() -> Path:
    found = find_spec("pyspark")
    assert found is not None, "harness and tests have it"
    assert found.origin is not None, "it is a package with an __init__"
    return Path(found.origin).with_name("jars")


def archive(name: str, jar_dir: Path) -> Path:
    """Where the archive for these jars is, or is to be."""
    digest = hashlib.sha256()
    for path in (Path(jars.java()).resolve(), *sorted(jar_dir.glob("*.jar"))):
        found = path.stat()
        digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())
    return jars.cache_dir().with_name("class-archives") / f"{name}-{digest.hexdigest()[:16]}.jsa"


def options(name: str, jar_dir: Path) -> tuple[str, ...]:
    """With which a JVM starts from the archive, if there is one."""
    path = archive(name, jar_dir)
    return (f"-XX:SharedArchiveFile={path}", *SILENCE) if path.exists() else ()


def making_options(path: Path) -> tuple[str, ...]:
    """With which a JVM writes an archive when it ends by itself or is asked to."""
    return (f"-XX:ArchiveClassesAtExit={path}", *SILENCE)
