"""What `sexton reproduce` refuses before it starts anything."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sexton.cli.broker import UsageError
from sexton.cli.main import app
from sexton.errors import SextonError
from sexton.reproduce.pace import BadPaceError


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), UsageError),
        (("--scenario", "nobody-wrote-it"), UsageError),
        (("--all", "--step"), UsageError),
        (("--scenario", "tombstone", "--step"), UsageError),
        (("--system", "sexton-coordinated", "--step"), UsageError),
        (("--scenario", "tombstone", "--pace", "soon"), BadPaceError),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(words: tuple[str, ...], error: type[SextonError]) -> None:
    done = CliRunner().invoke(app, ["reproduce", *words])
    assert isinstance(done.exception, error)
    assert done.exception.exit_code == 64
    assert done.exception.remedy
