"""Sockets are told to notice that the machine at the other end is gone."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

import jetbus
from jetbus.loops import keep_alive
from support.daemon import Daemon

KEEPALIVE_TIMER = 2
SETTLED_WITHIN_S = 30


def test_keep_alive() -> None:
    """A TCP socket is probed; a Unix socket, which needs none of it, is left alone."""
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        for sock in (tcp, unix, None):
            keep_alive(sock)
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert not unix.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("kind", ["tcp", "ws"])
def test_both_ends_of_a_connection_are_kept_alive(daemon: Daemon, kind: str) -> None:
    """The sockets of the daemon and of a peer have a timer that probes the other end."""
    host, port = daemon.address(kind)
    with jetbus.Peer(f"{'jet' if kind == 'tcp' else kind}://{host}:{port}") as peer:
        peer.info()
        until_s = time.monotonic() + SETTLED_WITHIN_S
        while timers_of(port) != [KEEPALIVE_TIMER, KEEPALIVE_TIMER]:  # others have to do with what was just sent
            assert time.monotonic() < until_s, timers_of(port)
            time.sleep(0.01)


def timers_of(port: int) -> list[int]:
    """The timers of all sockets that are connected to or from a port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = f":{port:04X}"
    connected = [row for row in rows if row[3] == "01" and (row[1].endswith(ends) or row[2].endswith(ends))]
    return [int(row[5].split(":")[0], 16) for row in connected]
