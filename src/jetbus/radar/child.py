"""Radar as the child process of a daemon.

    python -m jetbus.supervise jetbus.radar.child --url jet://127.0.0.1:11122 --fd 7 --journal log

The daemon has bound the sockets and passes them on as descriptors: their address is known before this process is up,
browsers that come meanwhile wait in the queue of the sockets, and a new process can take over from one that has failed.
``supervise`` ends it with the daemon, also with one that was killed.
"""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from pathlib import Path

from jetbus.journal import JournalError
from jetbus.radar.app import RadarSettings
from jetbus.radar.server import ServerSettings, serve_sockets


def main() -> None:
    """Serve Radar on inherited sockets until SIGTERM comes."""
    parser = argparse.ArgumentParser(prog="jetbus.radar.child", allow_abbrev=False)
    parser.add_argument("--url", required=True)
    parser.add_argument("--fd", type=int, action="append", required=True)
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--origin", action="append", default=[])
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    chosen = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = RadarSettings(chosen.url, journal=chosen.journal, origins=tuple(chosen.origin))
    try:
        server = ServerSettings(chosen.tls_cert, chosen.tls_key)
        serve_sockets(settings, [socket.socket(fileno=number) for number in chosen.fd], server)
    except JournalError as problem:
        sys.exit(f"radar: {problem}")


if __name__ == "__main__":
    main()
