"""Connecting: daemons that start later, several addresses, and addresses with the wrong scheme."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus.daemon.config import Address
from jetbus.peer.address import ADDRESSES_MAX, read_urls
from jetbus.peer.simple import SimplePeer
from jetbus.testing import RunningDaemon, running_daemon
from support.foreign import free_port
from support.peers import DEADLINE_S, PeerFactory, run, until
from support.standin import standing_in

URLS = {
    "jet://a,b": ["jet://a:11122", "jet://b:11122"],
    "a,b:11125": ["jet://a:11122", "jet://b:11125"],
    "jet://a, b": ["jet://a:11122", "jet://b:11122"],
    "ws://a,b/api/jet/": ["ws://a:11123/api/jet/", "ws://b:11123/api/jet/"],
    "jet://a,ws://b,c": ["jet://a:11122", "ws://b:11123/", "ws://c:11123/"],
    "jet://[::1],127.0.0.1": ["jet://[::1]:11122", "jet://127.0.0.1:11122"],
    "jet://a, ws://b": ["jet://a:11122", "ws://b:11123/"],
    "unix:///run/a,b": ["unix:///run/a,b"],
    "unix:///run/jet,jet://b": ["unix:///run/jet", "jet://b:11122"],
}


@pytest.mark.parametrize("url", URLS)
def test_several_addresses_are_read(url: str) -> None:
    """Addresses are separated by commas; hosts of one URL share its scheme, login and path."""
    assert [str(one) for one in read_urls(url)] == URLS[url]


def test_hosts_share_a_login() -> None:
    """The login before the first host is that of all hosts of its URL."""
    assert [(one.user, one.password) for one in read_urls("jet://ann:a,b@c,d,jet://e")] == [
        ("ann", "a,b"),
        ("ann", "a,b"),
        (None, None),
    ]


def test_addresses_have_a_limit() -> None:
    """More addresses than anybody has daemons are a mistake."""
    with pytest.raises(ValueError, match=f"17 addresses; give at most {ADDRESSES_MAX}"):
        read_urls("jet://" + ",".join("abcdefghijklmnopq"))


def test_addresses_are_tried_in_turn(face: str) -> None:
    """A peer connects to the first address that has a daemon, and moves to the next one when that daemon ends."""

    async def case() -> None:
        with running_daemon() as second:
            first = running_daemon()
            one = first.__enter__()
            url = f"jet://127.0.0.1:{free_port()},{_place(one.url)},{_place(second.url)}"
            async with PeerFactory(url, face).peer() as peer:
                assert peer.url == one.url
                await peer.add_state("a/b", 1)
                first.__exit__(None, None, None)
                await until(lambda: peer.url == second.url and peer.connected)
                assert await peer.get("a/b") == 1

    run(case())


def _place(url: str) -> str:
    return url.removeprefix("jet://")


def test_no_address_has_a_daemon(face: str) -> None:
    """The error names every address that was tried."""
    ports = [free_port(), free_port()]

    async def case() -> None:
        url = "jet://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        with pytest.raises(jetbus.NotConnected, match="none of 2 addresses has a daemon") as raised:
            async with PeerFactory(url, face).peer():
                pass
        assert all(f"jet://127.0.0.1:{port}" in str(raised.value) for port in ports)

    run(case())


@contextmanager
def daemon_after_a_failure(port: int, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A daemon that is started when a peer has said that it waits for one."""
    ended = threading.Event()

    def start() -> None:
        while not any("waiting until there is one" in record.getMessage() for record in list(caplog.records)):
            if ended.wait(0.01):
                return
        with running_daemon(tcp=Address("127.0.0.1", port)):
            ended.wait(DEADLINE_S)

    thread = threading.Thread(target=start)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("options", [{"wait": True}, {"wait_s": DEADLINE_S}], ids=["wait", "wait_s"])
def test_a_daemon_that_starts_later(options: dict[str, Any], face: str, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that waits says so in the log, once, and is connected as soon as there is a daemon."""
    port = free_port()

    async def case() -> None:
        async with PeerFactory(f"jet://127.0.0.1:{port}", face).peer(**options) as peer:
            await peer.add_state("a/b", 1)
            assert await peer.get("a/b") == 1

    with caplog.at_level(logging.WARNING, logger="jetbus.peer"), daemon_after_a_failure(port, caplog):
        run(case())
    (said,) = [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()]
    assert said.startswith(f"no daemon at jet://127.0.0.1:{port} (")


def test_a_command_waits_for_a_daemon(caplog: pytest.LogCaptureFixture) -> None:
    """So does the peer of a command that asks once."""
    port = free_port()
    with (
        caplog.at_level(logging.WARNING, logger="jetbus.peer"),
        daemon_after_a_failure(port, caplog),
        SimplePeer(f"jet://127.0.0.1:{port}", wait=True) as peer,
    ):
        assert peer.is_jetbus


def test_waiting_ends(face: str) -> None:
    """A peer that was to wait for a while gives up after it."""

    async def case() -> None:
        with pytest.raises(jetbus.NotConnected, match="no daemon at"):
            async with PeerFactory(f"jet://127.0.0.1:{free_port()}", face).peer(wait_s=0.05):
                pass

    run(case())


def test_a_peer_that_waits_can_be_closed() -> None:
    """Closing a peer ends its wait for a daemon."""
    peer = jetbus.Peer(f"jet://127.0.0.1:{free_port()}", wait=True)
    connecting = peer.connect_async()
    peer.close()
    with pytest.raises(jetbus.NotConnected):
        connecting.result(DEADLINE_S)


WRONG = {
    "jet on WebSocket": ("ws", "jet", "Jet by WebSocket: use ws://"),
    "jet on binary": ("jetb", "jet", "Jet's binary protocol: use jetb://"),
    "ws on jet": ("jet", "ws", "Jet in JSON: use jet://"),
    "ws on binary": ("jetb", "ws", "Jet's binary protocol: use jetb://"),
    "jetb on WebSocket": ("ws", "jetb", "Jet by WebSocket: use ws://"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("kind", ["Peer", "command"])
def test_the_wrong_scheme(case: str, kind: str, daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address with the wrong scheme for its port is answered with the right one; waiting would not help."""
    for module in ("connection", "simple"):
        monkeypatch.setattr(f"jetbus.peer.{module}.CONNECT_S", 1.0)
    right, wrong, advice = WRONG[case]
    urls = {"jet": daemon.url, "ws": daemon.ws_url, "jetb": daemon.binary_url}
    url = f"{wrong}://{urls[right].partition('://')[2]}"
    connect = jetbus.Peer(url, wait=True).connect if kind == "Peer" else lambda: SimplePeer(url, wait=True)
    with pytest.raises(jetbus.NotConnected) as raised:
        connect()
    assert advice in str(raised.value)


def test_the_wrong_scheme_with_tls(certificate: Path) -> None:
    """A daemon with TLS is recognised, too."""
    with running_daemon(tls_cert=certificate) as daemon:
        url = daemon.ws_url.replace("wss://", "jet://").replace("ws://", "jet://")
        with pytest.raises(jetbus.NotConnected, match="Jet by WebSocket with TLS: use wss://"):
            jetbus.Peer(url).connect()


def test_the_wrong_scheme_at_another_daemon() -> None:
    """Other daemons are recognised by the same questions."""
    with (
        standing_in("cjet") as url,
        pytest.raises(jetbus.NotConnected, match="Jet in JSON: use jet://"),
    ):
        jetbus.Peer(url.replace("jet://", "ws://")).connect()


def test_something_else_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scheme is named if no daemon answers in any protocol."""
    monkeypatch.setattr("jetbus.peer.connection.CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"jet://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(jetbus.NotConnected, match="is that a Jet daemon"):
            jetbus.Peer(url).connect()
