"""A client's process: makes a driver's producers and consumers and calls them, as it is asked through a pipe.

    python -m sexton.verify.clients.serve sexton.verify.clients.confluent

Each question is a pickled tuple (object, method, arguments); object 0 is the module, and making a `Producer` or
`Consumer` answers with the number by which it is called from then on. What clients print, and what those in Python
log, goes to the standard error.
"""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import pickle
import sys
import traceback
from typing import Any

from sexton.verify.clients.base import FATAL, Failure, Reference

MODULE = 0


def main() -> None:
    faulthandler.enable()  # one that hangs is ended by SIGABRT, and says where it was
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    objects: dict[int, Any] = {MODULE: importlib.import_module(sys.argv[1])}
    while True:
        try:
            target, method, arguments = pickle.load(questions)
        except EOFError:
            os._exit(0)  # clients that were left behind may hold threads
        try:
            resolved = [objects[each] if isinstance(each, Reference) else each for each in arguments]
            result = getattr(objects[target], method)(*resolved)
            if target == MODULE:
                objects[len(objects)] = result
                result = Reference(len(objects) - 1)
            answer: tuple[Any, Failure | None] = (result, None)
        except Failure as failure:
            answer = (None, failure)
        except BaseException:
            answer = (None, Failure(FATAL, "unexpected", traceback.format_exc()))
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
