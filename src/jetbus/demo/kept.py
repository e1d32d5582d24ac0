"""Runs a module as a program until it ends, or until whoever started it is gone.

    python -m jetbus.demo.kept jetbus.daemon.main --tcp localhost:0

Its stdin is a pipe that nobody writes to. It ends with whoever holds the other end, also when that one was killed; so
no part of a demo outlives it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    """Run the module that the command line names, with the words after it."""
    threading.Thread(target=_end_with_the_starter, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end_with_the_starter() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
