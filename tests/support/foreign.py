"""node-jet daemons of all versions, which can be stopped and started again at the same port."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

DAEMON = Path(__file__).with_name("daemon.cjs")
STOP_WITHIN_S = 20
KINDS = [(version, transport) for version in (1, 2, 3) for transport in ("tcp", "ws")]
NAMES = [f"nj{version}-{transport}" for version, transport in KINDS]


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


class ForeignDaemon:
    """A daemon of one version of node-jet on one port."""

    def __init__(self, version: int, transport: str, *, batches: bool = False) -> None:
        node = shutil.which("node")
        assert node, "there is no node on the PATH: run make test, which installs node and the clients"
        port = free_port()
        self.version = version
        self.url = f"{'jet' if transport == 'tcp' else 'ws'}://127.0.0.1:{port}"
        # node-jet 3 tells peers that are gone, and does not look whether that worked: Node.js would end it for that.
        lenient = ["--unhandled-rejections=warn"] if version == 3 else []
        self._command = [
            node,
            *lenient,
            str(DAEMON),
            str(version),
            transport,
            str(port),
            *(["batches"] if batches else []),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def stop(self) -> None:
        """Stop it; every peer loses its connection."""
        process, self._process = self._process, None
        if process is not None:
            assert process.poll() is None, "the node-jet daemon has ended by itself"
            process.communicate(timeout=STOP_WITHIN_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()
