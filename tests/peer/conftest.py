"""Fixtures: both faces, and a daemon of its own for each test."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trustme

from jetbus.peer import handles
from jetbus.peer.handles import COMPILED, iterate_in_python
from jetbus.testing import RunningDaemon, running_daemon
from support.peers import FACES, PeerFactory

SCHEMES = ["jet", "ws", "unix-abstract", "unix-file", "jets", "wss"]
SCHEMES += ["jetb", "jetbs", "jetb+ws", "jetb+wss", "jetb+unix"]
_numbers = count(1)


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """PeerAsync, with and without what is compiled of it, or Peer."""
    chosen: str = request.param
    if chosen == "async in Python":
        monkeypatch.setattr(handles, "iterate", iterate_in_python)
    elif chosen == "async" and not COMPILED:
        pytest.skip("nothing is compiled here")
    return chosen


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    """A way to connect."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def certificate(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate and its key in one file."""
    file = tmp_path_factory.mktemp("tls") / "daemon.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(file))
    return file


@pytest.fixture(scope="session")
def trust(authority: trustme.CA) -> ssl.SSLContext:
    """A context that trusts the daemon's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return context


@pytest.fixture
def schemed(scheme: str, face: str, tmp_path: Path, certificate: Path, trust: ssl.SSLContext) -> Iterator[PeerFactory]:
    """A daemon that is reached by each scheme."""
    tls = scheme in ("jets", "wss", "jetbs", "jetb+wss")
    settings: dict[str, Any] = {"tls_cert": certificate} if tls else {}
    if scheme == "unix-abstract":
        settings["unix"] = f"@jetbus-peer-{id(tmp_path)}-{next(_numbers)}"
    elif scheme == "unix-file":
        settings["unix"] = str(tmp_path / "jet.socket")
    elif scheme == "jetb+unix":
        settings["binary_unix"] = f"@jetbus-peer-{id(tmp_path)}-{next(_numbers)}"
    with running_daemon(**settings) as daemon:
        urls = {"jet": daemon.url, "jets": daemon.url, "ws": daemon.ws_url, "wss": daemon.ws_url}
        urls |= {"jetb": daemon.binary_url, "jetbs": daemon.binary_url, "jetb+unix": daemon.binary_unix_url}
        urls |= {"jetb+ws": f"jetb+{daemon.ws_url}", "jetb+wss": f"jetb+{daemon.ws_url}"}
        yield PeerFactory(urls.get(scheme, daemon.unix_url), face, trust if tls else None)


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    """A daemon of the test's own, reached by TCP."""
    with running_daemon() as daemon:
        yield daemon


@pytest.fixture(params=["JSON", "binary"])
def bus(daemon: RunningDaemon, face: str, request: pytest.FixtureRequest) -> PeerFactory:
    """The bus of that daemon, for each face and protocol."""
    return PeerFactory(daemon.url if request.param == "JSON" else daemon.binary_url, face)
