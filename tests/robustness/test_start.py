"""A broker is ready in a second because of what it does not import."""

from __future__ import annotations

import subprocess
import sys

from sexton.harness.brokers import ENVIRONMENT

HEAVY = ("hypothesis", "numpy", "numba", "pandas", "pyarrow", "pyspark", "psycopg")
"""kio imports the first wherever it is installed; the last is for who has a PostgreSQL; the others are for bulk data,
which a broker leaves alone."""


def test_a_broker_starts_without_what_it_does_not_need() -> None:
    program = (
        "import sys\n"
        "from sexton.cli.main import main\n"
        "sys.argv = ['sexton', 'broker', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "import sexton.broker.broker, sexton.adapters.files, sexton.adapters.metastore, sexton.adapters.sockets\n"
        "from sexton.broker import api\n"
        "api.modules()\n"
        f"print([name for name in {HEAVY!r} if sys.modules.get(name) is not None])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
