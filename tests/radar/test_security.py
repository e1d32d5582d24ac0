"""Protection against other pages: hosts and origins that may use Radar, and login cookies."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from jetbus.radar.logins import HistorySource, Login, Logins, NoHistory
from jetbus.radar.mirror import BusMirror
from jetbus.radar.security import is_allowed_host, is_allowed_origin

LOCAL, ABROAD = ("127.0.0.1", 11128), ("192.168.1.5", 11128)
HOSTS: dict[str, tuple[str, Any, tuple[str, ...], bool]] = {
    "localhost": ("localhost:11128", LOCAL, (), True),
    "an address": ("127.0.0.1:11128", LOCAL, (), True),
    "an IPv6 address": ("[::1]:11128", ("::1", 11128), (), True),
    "a name that leads here": ("evil.example:11128", LOCAL, (), False),
    "a name over IPv6": ("evil.example", ("::1", 11128), (), False),
    "no name": ("", LOCAL, (), False),
    "an allowed origin": ("radar.example", LOCAL, ("https://radar.example",), True),
    "all origins": ("radar.example", LOCAL, ("*",), True),
    "another network": ("plant-pc:11128", ABROAD, (), True),
}
ORIGINS: dict[str, tuple[dict[str, str], tuple[str, ...], bool]] = {
    "no browser": ({"host": "a"}, (), True),
    "this page": ({"host": "a:1", "origin": "http://a:1"}, (), True),
    "another port": ({"host": "a:1", "origin": "http://a:2"}, (), False),
    "behind a proxy": ({"host": "b", "x-forwarded-host": "a", "origin": "https://a"}, (), True),
    "an allowed one": ({"host": "b", "origin": "https://a"}, ("https://a",), True),
    "all": ({"host": "b", "origin": "https://a"}, ("*",), True),
    "a stranger": ({"host": "b", "origin": "https://a"}, ("https://c",), False),
}


@pytest.mark.parametrize(("host", "server", "origins", "allowed"), HOSTS.values(), ids=HOSTS.keys())
def test_hosts(host: str, server: Any, origins: tuple[str, ...], allowed: bool) -> None:
    """A request over loopback has to name this machine."""
    assert is_allowed_host(host, server, origins) is allowed


@pytest.mark.parametrize(("headers", "origins", "allowed"), ORIGINS.values(), ids=ORIGINS.keys())
def test_origins(headers: dict[str, str], origins: tuple[str, ...], allowed: bool) -> None:
    """Pages of other origins may connect only if they are named."""
    assert is_allowed_origin(headers, origins) is allowed


def test_strangers_are_refused(radar: str) -> None:
    """A name that leads here, and a page of another origin, get nothing: no page, no WebSocket, no login."""
    where = urllib.parse.urlsplit(radar)
    client = http.client.HTTPConnection(str(where.hostname), where.port, timeout=60)
    client.request("GET", "/api/journal", headers={"Host": "evil.example"})
    with client.getresponse() as answer:
        assert answer.status == 403
        assert "--origin" in json.loads(answer.read())["error"]
    client.request("POST", "/login", body="{}", headers={"Origin": "http://evil.example"})
    with client.getresponse() as answer:
        assert answer.status == 403
    client.close()
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        with pytest.raises(InvalidStatus), connect(radar.replace("http", "ws") + "ws", additional_headers=headers):
            pass


def refuse_to_open() -> Any:
    raise OSError("nobody is there")


def make_login(user: str) -> Login:
    return Login(user, lambda: BusMirror(None, {}), HistorySource(refuse_to_open))


def test_logins_have_limits() -> None:
    """Beyond a number the login that was used longest ago is forgotten, and old ones are not known any more."""
    logins = Logins(logins_max=2)
    tokens = [logins.add(make_login(user))[0] for user in ("ann", "bob")]
    assert logins.find(tokens[0]) is not None
    _token, gone = logins.add(make_login("cat"))
    assert [login.user for login in gone] == ["bob"]
    assert logins.find(tokens[1]) is None
    assert logins.find("guessed") is None
    removed = logins.remove(tokens[0])
    assert removed is not None
    assert removed.user == "ann"
    assert len(logins) == 1
    idle = Logins(idle_s=-1.0)
    token, gone = idle.add(make_login("ann"))
    assert idle.find(token) is None


def test_a_past_that_is_not_there() -> None:
    """A question about it is answered with the reason."""
    source = HistorySource(refuse_to_open)
    assert not source.is_there()
    with pytest.raises(NoHistory, match="nobody is there"):
        source.get()
