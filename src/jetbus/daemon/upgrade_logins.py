"""Logins by the HTTP request that opens a WebSocket, for web pages with a user that is logged in already.

Two proofs count, each only if its setting is given:

- A header with the name of the user (``ws_login_header``), from a proxy that has checked the user. Anybody can send a
  header, so it counts only from the addresses in ``ws_login_proxies``, and only if it is there once.
- A cookie (``ws_login_cookie``) with a token that the web application has signed with a key that it shares with the
  daemon (``ws_login_key``): a JSON Web Token by HS256 with ``sub``, the user, and ``exp``, its end. The signature
  proves it, so it counts from every address.

Neither is a reason to refuse a connection: without a valid proof a peer is a guest and can still authenticate. The
check of origins (see ``origins``) keeps foreign pages from using the cookies of their visitors.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
import ipaddress
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetbus.daemon.config import ConfigError

if TYPE_CHECKING:
    from websockets.datastructures import Headers

    from jetbus.daemon.config import Config

KEY_BYTES_MIN = 32
"""Length of the key below which a signature could be guessed."""


def check_settings(config: Config) -> None:
    """Refuse settings that would have no effect, or too much."""
    given = [name for name in ("ws_login_header", "ws_login_cookie") if getattr(config, name)]
    if given and config.users is None:
        raise ConfigError(f"{given[0]} is given without users; give the file of the users that it names")
    if given and "*" in config.ws_origins:
        raise ConfigError(
            f"{given[0]} and ws_origins = * would let every page use the login of its visitors; list the origins"
        )
    for name, needed in (("ws_login_header", "ws_login_proxies"), ("ws_login_cookie", "ws_login_key")):
        if bool(getattr(config, name)) is not bool(getattr(config, needed)):
            raise ConfigError(f"{name} and {needed} are given together or not at all")


def read_key(file: Path | None) -> bytes:
    """Return the key of the tokens in cookies, empty if there is none; refuse one that is too short."""
    if file is None:
        return b""
    try:
        key = file.read_bytes().strip()
    except OSError as problem:
        raise ConfigError(f"cannot read ws_login_key {file}: {problem.strerror}") from None
    if len(key) < KEY_BYTES_MIN:
        raise ConfigError(f"the key in {file} has {len(key)} bytes; ws_login_key needs at least {KEY_BYTES_MIN}")
    return key


def find_user(headers: Headers, host: str, config: Config, key: bytes, now: float) -> str | None:
    """Return the user whom the request of a host proves, None if it proves none."""
    if config.ws_login_header and is_proxy(host, config.ws_login_proxies):
        names = headers.get_all(config.ws_login_header)
        if len(names) == 1 and names[0]:
            return names[0]
    if config.ws_login_cookie and key:
        tokens = _find_cookies(headers.get_all("Cookie"), config.ws_login_cookie)
        if len(tokens) == 1:
            return read_token(tokens[0], key, now)
    return None


def is_proxy(host: str, proxies: Sequence[str]) -> bool:
    """Return True if an address is in the list of proxies.

    >>> is_proxy("10.1.2.3", ["10.0.0.0/8"]), is_proxy("::ffff:10.1.2.3", ["10.1.2.3"]), is_proxy("::1", ["10.0.0.1"])
    (True, True, False)
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in _networks(tuple(proxies)))


@functools.lru_cache(maxsize=4)
def _networks(proxies: tuple[str, ...]) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    return [ipaddress.ip_network(proxy, strict=False) for proxy in proxies]


def _find_cookies(lines: Sequence[str], name: str) -> list[str]:
    pairs = (pair.strip().partition("=") for line in lines for pair in line.split(";"))
    return [value.strip().strip('"') for key, _, value in pairs if key.strip() == name]


def read_token(token: str, key: bytes, now: float) -> str | None:
    """Return the user of a token that is signed with the key and has not ended."""
    signed, _, signature = token.rpartition(".")
    head, dot, claims = signed.partition(".")
    expected = hmac.digest(key, signed.encode(), "sha256")
    try:
        # Before anything is read: whatever is not signed is not looked at.
        if not dot or not hmac.compare_digest(expected, _decode(signature)):
            return None
        kind, said = _read_object(head), _read_object(claims)
    except (ValueError, binascii.Error):
        return None
    user = said.get("sub")
    if kind.get("alg") != "HS256" or "crit" in kind or not isinstance(user, str) or not user:
        return None
    return user if _read_time(said, "nbf", 0.0) <= now < _read_time(said, "exp", 0.0) else None


def _decode(part: str) -> bytes:
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)


def _read_object(part: str) -> dict[str, Any]:
    read = json.loads(_decode(part))
    if not isinstance(read, dict):
        raise ValueError("not an object")
    return read


def _read_time(claims: dict[str, Any], name: str, default: float) -> float:
    """Return an instant of a token; one that is not a number never comes, as a start and as an end."""
    value = claims.get(name, default)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
