"""Logins by the HTTP request that opens a WebSocket: a proxy's header, or a cookie with a signed token."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from jetbus.daemon.config import ConfigError, load
from jetbus.daemon.upgrade_logins import check_settings, read_key, read_token
from support.daemon import Daemon

KEY = b"0123456789abcdef0123456789abcdef"
USERS = {
    "users": {
        "ann": {"password": "secret", "auth": {"fetchGroups": ["staff"], "setGroups": [], "callGroups": []}},
    }
}


def _part(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


def make_token(claims: object, key: bytes = KEY, head: object = None) -> str:
    """Make a token as a web application would, with any JWT library."""
    signed = f"{_part(head or {'alg': 'HS256', 'typ': 'JWT'})}.{_part(claims)}"
    signature = base64.urlsafe_b64encode(hmac.digest(key, signed.encode(), "sha256")).rstrip(b"=").decode()
    return f"{signed}.{signature}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("users")
    (made / "users.json").write_text(json.dumps(USERS), encoding="utf-8")
    (made / "key").write_bytes(KEY + b"\n")
    return made


def _options(folder: Path, *, proxies: str) -> list[str]:
    return [
        *("--users", str(folder / "users.json"), "--ws-login-header", "X-Remote-User", "--ws-login-proxies", proxies),
        *("--ws-login-cookie", "jet", "--ws-login-key", str(folder / "key")),
    ]


@pytest.fixture(scope="module")
def daemons(folder: Path) -> Iterator[dict[str, Daemon]]:
    """Two daemons: loopback is a proxy of the first and not of the second."""
    with (
        Daemon.start(*_options(folder, proxies="10.9.8.7,127.0.0.0/8,::1")) as near,
        Daemon.start(*_options(folder, proxies="10.9.8.7")) as far,
    ):
        yield {"proxy": near, "stranger": far}


def sees_secret(daemon: Daemon, headers: list[tuple[str, str]]) -> bool:
    """Return True if a peer that opens a WebSocket with these headers sees what only ann may see."""
    with daemon.connect() as owner:
        owner.result("add", {"path": "secret", "value": 1, "access": {"fetchGroups": ["staff"]}})
        owner.result("add", {"path": "open", "value": 1})
        with connect(f"ws://{daemon.listens['ws']}", additional_headers=headers) as peer:
            peer.send(json.dumps({"id": 1, "method": "get", "params": {}}))
            paths = [entry["path"] for entry in json.loads(peer.recv())["result"]]
    assert "open" in paths
    return "secret" in paths


Headers = Callable[[], list[tuple[str, str]]]
FUTURE = 60.0


def _cookie(claims: dict[str, Any], **options: Any) -> list[tuple[str, str]]:
    return [("Cookie", f"theme=dark; jet={make_token(claims, **options)}; a=b")]


CASES: dict[str, tuple[str, Headers, bool]] = {
    "a proxy names the user": ("proxy", lambda: [("X-Remote-User", "ann")], True),
    "the case of the name of a header does not matter": ("proxy", lambda: [("x-remote-user", "ann")], True),
    "anybody else names a user": ("stranger", lambda: [("X-Remote-User", "ann")], False),
    "a proxy names nobody": ("proxy", lambda: [("X-Remote-User", "")], False),
    "a proxy names a user who does not exist": ("proxy", lambda: [("X-Remote-User", "bob")], False),
    "two headers": ("proxy", lambda: [("X-Remote-User", "ann"), ("X-Remote-User", "ann")], False),
    "nothing": ("proxy", list, False),
    "a signed cookie": ("stranger", lambda: _cookie({"sub": "ann", "exp": time.time() + FUTURE}), True),
    "a cookie that has ended": ("stranger", lambda: _cookie({"sub": "ann", "exp": time.time() - 1}), False),
    "a cookie signed with another key": (
        "stranger",
        lambda: _cookie({"sub": "ann", "exp": time.time() + FUTURE}, key=b"x" * 32),
        False,
    ),
    "two cookies": ("stranger", lambda: 2 * _cookie({"sub": "ann", "exp": time.time() + FUTURE}), False),
    "a cookie with a name": ("stranger", lambda: [("Cookie", "jet=ann")], False),
}


@pytest.mark.parametrize(("who", "headers", "sees"), CASES.values(), ids=CASES)
def test_logins(daemons: dict[str, Daemon], who: str, headers: Headers, sees: bool) -> None:
    """A peer is logged in by its request exactly if a listed proxy or the key proves its user; else it is a guest."""
    assert sees_secret(daemons[who], headers()) is sees


def test_a_guest_may_still_authenticate(daemons: dict[str, Daemon]) -> None:
    """A request that proves nobody does not keep a peer from logging in by password."""
    with connect(f"ws://{daemons['stranger'].listens['ws']}", additional_headers={"X-Remote-User": "ann"}) as peer:
        peer.send(json.dumps({"id": 1, "method": "authenticate", "params": {"user": "ann", "password": "secret"}}))
        assert json.loads(peer.recv())["result"]["fetchGroups"] == ["staff"]


NOW = 1_000_000.0
GOOD: dict[str, Any] = {"sub": "ann", "exp": NOW + 1}
TOKENS: dict[str, tuple[str, str | None]] = {
    "good": (make_token(GOOD), "ann"),
    "from now on": (make_token({**GOOD, "nbf": NOW}), "ann"),
    "not yet": (make_token({**GOOD, "nbf": NOW + 0.5}), None),
    "ends now": (make_token({**GOOD, "exp": NOW}), None),
    "without an end": (make_token({"sub": "ann"}), None),
    "an end that is no number": (make_token({**GOOD, "exp": True}), None),
    "without a user": (make_token({"exp": NOW + 1}), None),
    "an empty user": (make_token({**GOOD, "sub": ""}), None),
    "a user that is no text": (make_token({**GOOD, "sub": 7}), None),
    "not signed": (make_token(GOOD, head={"alg": "none"}), None),
    "another algorithm": (make_token(GOOD, head={"alg": "HS512"}), None),
    "something critical": (make_token(GOOD, head={"alg": "HS256", "crit": ["b64"], "b64": False}), None),
    "claims that are a list": (make_token([1]), None),
    "signature cut off": (make_token(GOOD).rpartition(".")[0] + ".", None),
    "two parts": (make_token(GOOD).partition(".")[2], None),
    "empty": ("", None),
    "no base64": ("ä.ö.ü", None),
}


@pytest.mark.parametrize(("token", "user"), TOKENS.values(), ids=TOKENS)
def test_tokens(token: str, user: str | None) -> None:
    """A token names its user only if it is signed by HS256 with the key, and for its time only."""
    assert read_token(token, KEY, NOW) == user


WRONG: dict[str, tuple[list[str], str]] = {
    "a header without users": (["--ws-login-header", "X", "--ws-login-proxies", "::1"], "without users"),
    "a header without proxies": (["--ws-login-header", "X", "--users", "u"], "given together"),
    "proxies without a header": (["--ws-login-proxies", "::1"], "given together"),
    "a cookie without a key": (["--ws-login-cookie", "X", "--users", "u"], "given together"),
    "a key without a cookie": (["--ws-login-key", "k"], "given together"),
    "a proxy that is no address": (["--ws-login-proxies", "proxy.example"], "addresses or networks"),
    "all origins": (
        ["--ws-login-cookie", "X", "--ws-login-key", "k", "--users", "u", "--ws-origins", "*"],
        "let every page use the login of its visitors",
    ),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG)
def test_settings_that_do_not_fit(arguments: list[str], words: str) -> None:
    """Settings that would have no effect, or let strangers in, are refused at the start."""
    with pytest.raises(ConfigError, match=words):
        check_settings(load(arguments, {}))


def test_keys(tmp_path: Path) -> None:
    """A key that is missing or could be guessed is refused at the start."""
    with pytest.raises(ConfigError, match="cannot read ws_login_key"):
        read_key(tmp_path / "none")
    (tmp_path / "short").write_bytes(KEY[1:] + b"\n")
    with pytest.raises(ConfigError, match="31 bytes; ws_login_key needs at least 32"):
        read_key(tmp_path / "short")
