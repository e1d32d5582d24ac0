"""Runner for a module that must not outlive the process that started it.

    python -m jetbus.supervise jetbus.daemon.main --tcp localhost:0

Its stdin is a pipe that is never written to. The pipe is closed when the parent ends, even if it was killed; then the
module is terminated, so that no process of a demo, and no Radar of a daemon, is left behind.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    """Run the module named on the command line with the arguments after it."""
    # A daemon thread, which does not keep the process alive when the module returns.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # The module finds its own name in front of its arguments, as if it had been started directly.
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    # The system closes the pipe however the parent ends.
    while os.read(0, 4096):
        pass
    # By a signal, as the module then ends in order; this is not its thread.
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
