"""Logins without a password: processes on a Unix socket and client certificates, mapped to users."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import jetbus
from jetbus.daemon.credentials import certificate_names
from jetbus.daemon.daemon import PAGE_READERS_MAX
from jetbus.daemon.users import Users, UsersFileError
from support.daemon import Daemon
from support.wire import DEADLINE_S, Wire

STAFF = {"fetchGroups": ["staff"], "setGroups": [], "callGroups": []}
HIDDEN = {"path": "hidden", "value": 1, "access": {"fetchGroups": ["staff"]}}


def write_users(folder: Path, users: dict[str, Any], **more: Any) -> Path:
    """Write a users file."""
    file = folder / "users.json"
    file.write_text(json.dumps({"users": users, **more}))
    return file


def sees(wire: Wire) -> bool:
    """Tell whether a peer sees what is for staff only."""
    return any(one["path"] == "hidden" for one in wire.result("get", {}))


PROCESSES: dict[str, tuple[dict[str, Any], bool]] = {
    "its user": ({"users": [os.getuid()]}, True),
    "its user by name": ({"users": [pwd.getpwuid(os.getuid()).pw_name]}, True),
    "its group": ({"groups": [os.getgid()]}, True),
    "another user": ({"users": [os.getuid() + 1]}, False),
    "another group": ({"groups": [os.getgid() + 1]}, False),
}


@pytest.mark.parametrize(("unix", "known"), PROCESSES.values(), ids=PROCESSES)
def test_process(tmp_path: Path, unix: dict[str, Any], known: bool) -> None:
    """A peer on the Unix socket is the user that its process belongs to; one that comes by TCP is not."""
    file = write_users(tmp_path, {"local": {"unix": unix, "auth": STAFF}})
    with Daemon.start("--users", str(file)) as daemon, daemon.connect() as owner:
        owner.result("add", HIDDEN)
        with daemon.connect("unix") as local:
            assert sees(local) is known
        assert not sees(owner)


def test_a_password_still_counts(tmp_path: Path) -> None:
    """A user known by its process can authenticate as another one, but not as a user without a password."""
    me = {"unix": {"users": [os.getuid()]}, "auth": STAFF}
    file = write_users(tmp_path, {"local": me, "bob": {"password": "bob-pw"}})
    with Daemon.start("--users", str(file)) as daemon, daemon.connect() as owner, daemon.connect("unix") as local:
        owner.result("add", HIDDEN)
        assert sees(local)
        for password in ("", "x"):
            assert owner.error("authenticate", {"user": "local", "password": password})["code"] == -32602
        local.result("authenticate", {"user": "bob", "password": "bob-pw"})
        assert not sees(local)


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "unix is a list": ({"unix": [1]}, '"unix" must be an object'),
    "unix has other keys": ({"unix": {"uid": [1]}}, '"unix" must be an object'),
    "a user is a boolean": ({"unix": {"users": [True]}}, "must be a list"),
    "an unknown user": ({"unix": {"users": ["no such user"]}}, "give its number instead"),
    "certificates are a text": ({"certificates": "CN:x"}, '"certificates" must be a list'),
    "a certificate without a kind": ({"certificates": ["x"]}, "must begin with one of DNS:, email:, URI:, CN:"),
    "two users of one name": ({"certificates": ["CN:taken"]}, "certificate CN:taken is 'other' already"),
    "no way to log in": ({"unix": {}}, '"password" must be a string'),
}


@pytest.mark.parametrize(("entry", "problem"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_credentials(tmp_path: Path, entry: dict[str, Any], problem: str) -> None:
    """Credentials that cannot be used are refused with the user, the cause and the next step."""
    file = write_users(tmp_path, {"other": {"certificates": ["CN:taken"]}, "ann": entry})
    with pytest.raises(UsersFileError) as caught:
        Users.load(file)
    assert "user 'ann'" in str(caught.value)
    assert problem in str(caught.value)


# Certificates.


class Authority:
    """A certificate authority, and a daemon that trusts it."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self._folder = folder
        self.ca.cert_pem.write_to_path(folder / "ca.pem")
        self.ca.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
        users = {
            "panel": {"certificates": ["DNS:panel.example", "CN:old panel"], "auth": STAFF},
            "bob": {"password": "bob-pw"},
        }
        tls = ["--tls-cert", str(folder / "server.pem"), "--tls-client-ca", str(folder / "ca.pem")]
        self.daemon = Daemon.start("--users", str(write_users(folder, users)), *tls)

    def client(self, *names: str, common_name: str | None = None, ca: trustme.CA | None = None) -> ssl.SSLContext:
        """The TLS settings of a client, with a certificate if it is to have a name."""
        context = ssl.create_default_context(cafile=str(self._folder / "ca.pem"))
        if names or common_name:
            (ca or self.ca).issue_cert(*names, common_name=common_name).configure_cert(context)
        return context

    def peer(self, scheme: str, tls: ssl.SSLContext, **login: Any) -> jetbus.Peer:
        host, port = self.daemon.address({"jets": "tcp", "wss": "ws", "jetbs": "binary"}[scheme])
        return jetbus.Peer(f"{scheme}://{host}:{port}", tls=tls, reconnect=False, **login)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    made = Authority(tmp_path_factory.mktemp("authority"))
    yield made
    made.daemon.stop()


CLIENTS: dict[str, tuple[dict[str, Any], bool]] = {
    "no certificate": ({"names": ()}, False),
    "a name that a user has": ({"names": ("panel.example",)}, True),
    "one of several names": ({"names": ("other.example", "panel.example")}, True),
    "the common name": ({"names": ("x.example",), "common_name": "old panel"}, True),
    "a name that no user has": ({"names": ("x.example",), "common_name": "panel.example"}, False),
}


@pytest.mark.parametrize("scheme", ["jets", "wss", "jetbs"])
@pytest.mark.parametrize(("certificate", "known"), CLIENTS.values(), ids=CLIENTS)
def test_certificate(authority: Authority, certificate: dict[str, Any], known: bool, scheme: str) -> None:
    """A client with a certificate is the user that one of its names belongs to; without one it may log in."""
    names, common_name = certificate["names"], certificate.get("common_name")
    with authority.peer("jets", authority.client()) as owner:
        owner.add_state("hidden", 1, access={"fetchGroups": ["staff"]})
        with authority.peer(scheme, authority.client(*names, common_name=common_name)) as client:
            assert client.get_all() == ({"hidden": 1} if known else {})


def test_certificate_of_a_stranger(authority: Authority) -> None:
    """A certificate that another authority has signed does not even get a connection."""
    with pytest.raises(jetbus.NotConnected):
        authority.peer("jets", authority.client("panel.example", ca=trustme.CA())).connect()


def test_password_over_tls(authority: Authority) -> None:
    """Clients without a certificate log in with a password as before."""
    with authority.peer("jets", authority.client(), user="bob", password="bob-pw") as bob:
        assert bob.get_all() == {}


def test_renewed_certificate(tmp_path: Path) -> None:
    """On SIGHUP new connections get a renewed certificate, and those that exist go on; a bad file changes nothing."""
    file = tmp_path / "server.pem"

    def issue() -> ssl.SSLContext:
        authority, context = trustme.CA(), ssl.create_default_context()
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(file)
        authority.configure_trust(context)
        return context

    def until_told(words: str) -> None:
        daemon.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + DEADLINE_S
        while words not in daemon.stderr():
            assert time.monotonic() < deadline, daemon.stderr()

    first = issue()
    with Daemon.start("--tls-cert", str(file), "--log-level", "info") as daemon:
        url = "jets://{}:{}".format(*daemon.address("tcp"))
        with jetbus.Peer(url, tls=first, reconnect=False) as early:
            early.add_state("x", 1)
            second = issue()
            until_told("certificate reloaded")
            with jetbus.Peer(url, tls=second, reconnect=False) as late:
                assert late.get_all() == {"x": 1}
            with pytest.raises(jetbus.NotConnected):
                jetbus.Peer(url, tls=first, reconnect=False).connect()
            file.write_text("no certificate")
            until_told(f"certificate not reloaded, the present one stays in use: cannot use certificate {file}")
            with jetbus.Peer(url, tls=second, reconnect=False) as later:
                assert later.get_all() == {"x": 1}
            assert early.get_all() == {"x": 1}


def test_unfinished_handshakes_count(tmp_path: Path) -> None:
    """TLS handshakes that are not completed count as connections and are given up in time; then others are served."""
    authority, certificate = trustme.CA(), tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    with Daemon.start("--tls-cert", str(certificate), "--connections-max", "3", "--handshake-s", "1") as daemon:
        silent = [socket.create_connection(daemon.address("tcp"), 30) for _ in range(3 + PAGE_READERS_MAX + 1)]
        for sock in silent:
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
            sock.close()
        assert "connections_max = 3" in daemon.stderr()
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with jetbus.Peer("jets://{}:{}".format(*daemon.address("tcp")), tls=context, reconnect=False) as peer:
            peer.add_state("x", 1)


def test_client_ca_needs_tls(tmp_path: Path) -> None:
    """A daemon that is to look at certificates without speaking TLS does not start."""
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    with pytest.raises(AssertionError, match="ended before it was ready"):
        Daemon.start("--tls-client-ca", str(tmp_path / "ca.pem"))


def test_no_certificate_has_no_names() -> None:
    """A connection without a certificate, or with an empty one, has no names."""
    assert certificate_names(None) == certificate_names({}) == []
