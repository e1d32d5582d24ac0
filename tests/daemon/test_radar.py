"""``jetd --radar``: the bus in a browser, served by a process beside the daemon."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import trustme

import jetbus
from support.daemon import COMMAND, Daemon

WITHIN_S = 60.0


def ask(daemon: Daemon, name: str, ca: trustme.CA | None = None) -> bytes:
    """Return an answer of its Radar; whoever comes early waits."""
    context = None
    if ca is not None:
        context = ssl.create_default_context()
        ca.configure_trust(context)
    address = f"{daemon.listens['radar']}{name}"
    with urllib.request.urlopen(address, timeout=WITHIN_S, context=context) as answer:  # noqa: S310 - the daemon says where
        body: bytes = answer.read()
        return body


def find_children(daemon: Daemon) -> list[int]:
    tasks = Path(f"/proc/{daemon.process.pid}/task").glob("*/children")
    return [int(number) for task in tasks for number in task.read_text().split()]


def test_radar_beside_the_daemon(tmp_path: Path) -> None:
    """It is there with the ready line, reads the daemon's journal, comes back if it fails, and ends with the daemon."""
    journal = tmp_path / "log"
    with Daemon.start("--journal", str(journal), "--radar", "127.0.0.1:0") as daemon:
        assert daemon.listens["radar"].startswith("http://127.0.0.1:")
        with jetbus.Peer(f"jet://{daemon.listens['tcp']}") as owner:
            owner.add_state("pump/speed", 7)
            owner.call("$jet/journal/offsets")
            elements = json.loads(ask(daemon, "api/tree"))["elements"]
            assert [(element["path"], element["value"]) for element in elements] == [("pump/speed", 7)]
            (child,) = find_children(daemon)
            os.kill(child, signal.SIGKILL)
            assert json.loads(ask_again(daemon, "api/journal"))["bus"], "another process has taken over"
            assert owner.get("pump/speed") == 7
        (child,) = find_children(daemon)
        assert "Radar has ended with exit code -9" in daemon.stderr()
    assert not Path(f"/proc/{child}").exists()


def ask_again(daemon: Daemon, name: str, ca: trustme.CA | None = None) -> bytes:
    """Ask until there is an answer: who was connected to a process that was killed is disconnected."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            return ask(daemon, name, ca)
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < deadline


def test_radar_ends_with_a_daemon_that_is_killed() -> None:
    """No Radar is left behind, also if the daemon has no time to stop it."""
    daemon = Daemon.start("--radar", "127.0.0.1:0")
    ask(daemon, "api/openapi.json")
    (child,) = find_children(daemon)
    daemon.process.kill()
    daemon.process.wait()
    deadline = time.monotonic() + WITHIN_S
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_visitors_have_no_rights_of_the_process(tmp_path: Path) -> None:
    """Visitors of a Radar that is connected by a Unix socket are not the user that its process belongs to.

    With the daemon's certificate they come by HTTPS.
    """
    certificate, users, ca = tmp_path / "server.pem", tmp_path / "users.json", trustme.CA()
    ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    local = {"unix": {"users": [os.getuid()]}, "auth": {"fetchGroups": ["staff"]}}
    users.write_text(json.dumps({"users": {"local": local}}))
    options = ["--tls-cert", str(certificate), "--users", str(users), "--radar", "127.0.0.1:0"]
    options += ["--journal", str(tmp_path / "log"), "--journal-groups", "staff"]
    with Daemon.start(*options) as daemon, daemon.connect("unix") as owner:
        assert owner.result("call", {"path": "$jet/journal/offsets", "args": []})["last"] > 0
        assert daemon.listens["radar"].startswith("https://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            ask(daemon, "api/journal", ca)
        assert b"may not access" in refused.value.read()


def test_a_renewed_certificate(tmp_path: Path) -> None:
    """After SIGHUP to the daemon its Radar has the new certificate, too."""
    certificate, former, ca = tmp_path / "server.pem", trustme.CA(), trustme.CA()
    former.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    with Daemon.start("--tls-cert", str(certificate), "--radar", "127.0.0.1:0") as daemon:
        ask(daemon, "api/openapi.json", former)
        ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
        daemon.process.send_signal(signal.SIGHUP)
        assert ask_again(daemon, "api/openapi.json", ca)


def test_an_address_that_is_in_use() -> None:
    """A daemon whose Radar has no address does not start, and says so."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [*COMMAND, "--tcp", "127.0.0.1:0", "--radar", where]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 1
    assert f"cannot listen on radar {where}: it is in use" in done.stderr
