"""Announcing by mDNS: off by default; a daemon on loopback is announced on loopback, and `jet find` finds it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from support.daemon import Daemon
from support.jet import Jet

HOST = socket.gethostname().partition(".")[0]


def find(jet: Jet, count: int) -> list[dict[str, str]]:
    """Look for daemons until there are so many; how soon one is heard of depends on the machine."""
    while True:
        done = jet("find", "--interface", "127.0.0.1", "--for", "1s")
        assert (done.code, done.err) == (0, "")
        found = [json.loads(line) for line in done.out.splitlines()]
        if len(found) == count:
            return found


def test_announced_daemon_is_found(tmp_path: Path) -> None:
    """A daemon that is announced is found with its name, address and version until it stops; others are not found."""
    jet = Jet("", tmp_path)
    with Daemon.start() as quiet, Daemon.start("--announce", "plant 1") as daemon:
        (found,) = find(jet, 1)
        assert (found["name"], found["url"]) == ("plant 1", "jet://{}:{}".format(*daemon.address("tcp")))
        assert "$jet/" in jet("ls", "$jet", "--url", found["url"]).out
        assert quiet.address("tcp") != daemon.address("tcp")
    assert find(jet, 0) == []


def test_flag_alone_takes_the_name_of_the_host(tmp_path: Path) -> None:
    """Daemons of one machine have its name, and their port if it is not the usual one."""
    with Daemon.start("--announce") as first, Daemon.start("--announce") as second:
        found = {row["name"] for row in find(Jet("", tmp_path), 2)}
        assert found == {f"{HOST} {daemon.address('tcp')[1]}" for daemon in (first, second)}
