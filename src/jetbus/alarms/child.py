"""Alarms as the child process of a daemon.

    python -m jetbus.supervise jetbus.alarms.child --url jet://127.0.0.1:11122 alarms.toml

``supervise`` ends it with the daemon, also with one that was killed.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading

from jetbus.alarms.live import run_alarms
from jetbus.entries import BadEntry
from jetbus.errors import JetError


def main() -> None:
    """Run the alarms of a file until SIGTERM comes."""
    parser = argparse.ArgumentParser(prog="jetbus.alarms.child", allow_abbrev=False)
    parser.add_argument("--url", required=True)
    parser.add_argument("file")
    chosen = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        run_alarms(chosen.url, chosen.file, stop=stop)
    except (BadEntry, JetError) as problem:
        sys.exit(f"alarms: {problem}")


if __name__ == "__main__":
    main()
