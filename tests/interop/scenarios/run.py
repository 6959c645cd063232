"""A client's process: reads which scenario to run from its standard input, one JSON object a line, and answers each.

    python -m tests.interop.scenarios.run confluent

What clients print goes to the standard error, so that answers stay clean.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import traceback
from typing import Any

from tests.interop.scenarios.common import Cluster, Scenarios


def main() -> None:
    faulthandler.enable()  # a scenario that hangs is ended by SIGABRT, and says where it was
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    scenarios = load(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        print(f"--- {asked['feature']}", file=sys.stderr, flush=True)
        answers.write(json.dumps({"failure": run(scenarios, asked)}) + "\n")
        answers.flush()
    os._exit(0)  # clients that were left behind by a failed scenario may hold threads


def load(module: str) -> Scenarios:
    """The table that this module makes."""
    scenarios: Scenarios = importlib.import_module(f"tests.interop.scenarios.{module}").scenarios
    return scenarios


def run(scenarios: Scenarios, asked: dict[str, Any]) -> str:
    """Empty if all went well, else the traceback."""
    try:
        for scenario in scenarios.by_feature[asked["feature"]]:
            scenario(Cluster(**asked["cluster"]))
    except BaseException:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    main()
