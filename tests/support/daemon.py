"""A real `jetd` process on free loopback ports.

    with Daemon.start("--tree", "flat") as daemon:
        peer = daemon.connect("tcp")

`start` returns once the daemon printed its ready line. Leaving the block stops it with SIGTERM and fails if it did not
end with exit code 0 or if anything on its stderr looks like a traceback.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from support.wire import BinaryWire, TcpWire, UnixWire, WebSocketWire, Wire

if TYPE_CHECKING:
    from types import TracebackType

READY_WITHIN_S = 20.0
STOP_WITHIN_S = 20.0
JETD = Path(sys.executable).with_name("jetd")
COMMAND = [str(JETD)] if JETD.exists() else [sys.executable, "-m", "jetbus.daemon.main"]

_unix_names = itertools.count(1)


class Daemon:
    """A running daemon: where it listens, how to connect to it, what it wrote to stderr."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: IO[bytes], ready: str) -> None:
        self.process = process
        self.ready = ready
        self.listens = dict(part.split("=", 1) for part in ready.split()[1:])
        self._stderr = stderr
        self._stderr_checked = 0

    @classmethod
    def start(cls, *options: str, env: dict[str, str] | None = None) -> Self:
        """Start a daemon on free ports of all transports; later options win over these."""
        unix = f"@jetbus-test-{os.getpid()}-{next(_unix_names)}"
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the daemon
        process = subprocess.Popen(
            [
                *(*COMMAND, "--tcp", "127.0.0.1:0", "--ws", "127.0.0.1:0", "--unix", unix),
                *("--binary", "127.0.0.1:0", "--binary-unix", f"{unix}-binary", *options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **(env or {})},
        )
        try:
            return cls(process, stderr, _ready_line(process))
        except BaseException:
            process.kill()
            process.wait()
            stderr.seek(0)
            sys.stderr.write(stderr.read().decode(errors="replace"))
            raise

    def connect(self, transport: str = "tcp", *, receive_buffer_bytes: int | None = None) -> Wire:
        """Connect a raw client; a small receive buffer makes a slow reader slow early."""
        if transport == "tcp":
            return TcpWire(self.address("tcp"), receive_buffer_bytes)
        if transport == "unix":
            return UnixWire(self.listens["unix"], receive_buffer_bytes)
        if transport == "ws":
            return WebSocketWire(self.address("ws"), receive_buffer_bytes)
        if transport == "binary":
            return BinaryWire(self.address("binary"))
        raise ValueError(transport)

    def address(self, transport: str) -> tuple[str, int]:
        host, _, port = self.listens[transport].rpartition(":")
        return host.strip("[]"), int(port)

    def http(self, path: str) -> tuple[int, str, str]:
        """GET a page of the WebSocket port: status, content type, text."""
        try:
            with urllib.request.urlopen(f"http://{self.listens['ws']}{path}", timeout=10) as answer:
                return answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers.get("Content-Type", ""), error.read().decode()

    def metrics(self) -> dict[str, float]:
        """The samples of /metrics: `name{labels}` to value."""
        samples = {}
        for line in self.http("/metrics")[2].splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                samples[name] = float(value)
        return samples

    def limit_hits(self, limit: str) -> float:
        return self.metrics().get(f'jetbus_limit_hits_total{{limit="{limit}"}}', 0.0)

    def close_log(self) -> None:
        """Close the file with the log; nothing reads it any more."""
        self._stderr.close()

    def stderr(self) -> str:
        """All that was written to stderr so far."""
        return os.pread(self._stderr.fileno(), 1 << 24, 0).decode(errors="replace")

    def check(self) -> None:
        """Fail unless the daemon is alive and wrote no traceback since the last check."""
        text = self.stderr()
        fresh, self._stderr_checked = text[self._stderr_checked :], len(text)
        assert self.process.poll() is None, f"jetd ended with {self.process.returncode}:\n{fresh}"
        assert "Traceback" not in fresh, fresh

    def await_empty(self, within_s: float = 10.0) -> None:
        """Return when nothing is on the bus any more: all that closed peers owned is gone."""
        deadline = time.monotonic() + within_s
        with self.connect() as witness:
            while left := witness.result("get", {}):
                assert time.monotonic() < deadline, f"still on the bus: {json.dumps(left)[:2000]}"

    def stop(self) -> None:
        """Stop with SIGTERM; exit code 0 and a clean stderr are part of the contract."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"jetd did not stop on SIGTERM:\n{self.stderr()}") from None
        finally:
            text = self.stderr()
            self.close_log()
            with contextlib.suppress(OSError):
                if self.process.stdout:
                    self.process.stdout.close()
        assert code == 0, f"jetd ended with {code}:\n{text}"
        assert "Traceback" not in text, text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
            return
        with contextlib.suppress(AssertionError):
            self.stop()


def _ready_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + READY_WITHIN_S
    line = b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            raise AssertionError(f"jetd is not ready after {READY_WITHIN_S} s, printed {line!r}")
        byte = os.read(process.stdout.fileno(), 1)
        if not byte:
            raise AssertionError(f"jetd ended before it was ready, printed {line!r}")
        line += byte
    text = line.decode().rstrip("\n")
    assert re.fullmatch(r"ready( (tcp|ws|unix|binary|binary_unix|radar)=\S+)+", text), text
    return text
