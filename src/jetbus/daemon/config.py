"""The daemon's settings: one table from which flags, environment variables, the TOML file and the documentation come.

A flag is stronger than an environment variable, that is stronger than the file. ``tcp`` is ``--tcp``, ``JET_TCP`` and
``tcp = "..."``. Adding a setting is one field here.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import ipaddress
import logging
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jetbus
from jetbus.bus.limits import Limits
from jetbus.paths import SEPARATORS

log = logging.getLogger("jetbus.config")


class ConfigError(Exception):
    """A setting that is not valid; the text has the setting, the reason and a value that would be."""


class AddressInUse(ConfigError):
    """An address that another program listens on."""


class Address(NamedTuple):
    """Address to listen on. Host ``localhost`` is both loopback addresses, ``*`` every address of the machine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


OFF = "off"
NAME_BYTES_MAX = 63
"""Bytes of a name in mDNS, at most."""
RADAR = "localhost:11128"
"""Address of Radar for ``--radar`` without a value."""


def read_address(text: str) -> Address | None:
    """``HOST:PORT``, ``[IPV6]:PORT``, ``:PORT`` (localhost) or ``off``."""
    if text == OFF:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError("it is HOST:PORT, such as localhost:11122, or off")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("an IPv6 address is put in brackets, such as [::1]:11122")
    return Address(host.strip("[]") or "localhost", int(port))


def read_unix(text: str) -> str | None:
    """``@name`` for an abstract socket, a file path for a socket file, or ``off``."""
    if text == OFF:
        return None
    if not text.strip("@"):
        raise ValueError("it is @NAME for an abstract socket, the path of a socket file, or off")
    return text


def read_choice(*choices: str) -> Callable[[str], str]:
    """One of a few words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"it is one of {', '.join(choices)}")
        return text

    return read


def read_count(text: str, most: int | None = None) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1 or (most is not None and int(text) > most):
        raise ValueError("it is a whole number of at least 1" + (f" and at most {most}" if most is not None else ""))
    return int(text)


def read_amount(text: str) -> int:
    """A whole number, not negative."""
    if not text.isdecimal():
        raise ValueError("it is a whole number of at least 0")
    return int(text)


def read_announced_name(text: str) -> str | None:
    """A name for others to read, empty for that of the host, or ``off``."""
    if "." in text or len(text.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"it is a name of at most {NAME_BYTES_MAX} bytes without dots, or off")
    return None if text == OFF else text


def read_seconds(text: str) -> float:
    """A number of seconds, not negative."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise ValueError("it is a number of seconds")
    return seconds


def read_list(text: str) -> tuple[str, ...]:
    """Words with commas between them."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def read_networks(text: str) -> tuple[str, ...]:
    """Addresses or networks with commas between them."""
    networks = read_list(text)
    try:
        for network in networks:
            ipaddress.ip_network(network, strict=False)
    except ValueError:
        raise ValueError("it is addresses or networks such as 127.0.0.1,10.0.0.0/8") from None
    return networks


def read_densities(text: str) -> tuple[tuple[str, str], ...]:
    """``RULE => DENSITY`` with semicolons between them; the journal interprets them."""
    rows = [row.partition("=>") for row in text.split(";") if row.strip()]
    if not all(arrow and rule.strip() and density.strip() for rule, arrow, density in rows):
        raise ValueError("it is RULE => DENSITY, such as plant/fast/** => sample 1s; ** => every")
    return tuple((rule.strip(), density.strip()) for rule, _, density in rows)


def _setting(
    default: Any,
    read: Callable[[str], Any],
    metavar: str,
    text: str,
    *,
    reload: bool = False,
    between: str = ",",
    alone: str | None = None,
) -> Any:
    about = {"read": read, "metavar": metavar, "help": text, "reload": reload, "between": between, "alone": alone}
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True)
class Config(Limits):
    """All settings of a daemon."""

    tcp: Address | None = _setting(
        Address("localhost", 11122),
        read_address,
        "HOST:PORT",
        "where to listen for TCP, or off; port 0 takes a free one",
    )
    ws: Address | None = _setting(
        Address("localhost", 11123), read_address, "HOST:PORT", "where to listen for WebSocket and HTTP, or off"
    )
    unix: str | None = _setting(
        "@/var/run/jet.socket", read_unix, "NAME", "Unix socket, @NAME for an abstract one, a path for a file, or off"
    )
    binary: Address | None = _setting(
        Address("localhost", 11124), read_address, "HOST:PORT", "where to listen for the binary protocol, or off"
    )
    binary_unix: str | None = _setting(
        "@/var/run/jet-binary.socket", read_unix, "NAME", "Unix socket of the binary protocol, or off"
    )
    users: Path | None = _setting(None, Path, "FILE", "JSON file of users, passwords and groups", reload=True)
    tls_cert: Path | None = _setting(
        None, Path, "FILE", "PEM certificates: the TCP, WebSocket and binary ports and Radar then speak TLS only"
    )
    tls_key: Path | None = _setting(None, Path, "FILE", "PEM key of the certificate, unless it is in the same file")
    tls_client_ca: Path | None = _setting(
        None, Path, "FILE", "PEM certificates of authorities for clients, which then need no password; see users"
    )
    tree: str = _setting(
        "auto",
        read_choice("auto", "strict", "flat"),
        "auto|strict|flat",
        "whether an element may be above another one: strict never, flat always, auto unless its owner is of 2012",
    )
    separator: str = _setting(
        "/",
        read_choice(*SEPARATORS),
        "/|.|/.",
        "characters that separate the nodes of a path: slashes, dots or both",
    )
    timeout_s: float = _setting(
        5.0, read_seconds, "S", "how long an owner may take to answer a set or call", reload=True
    )
    ws_ping_s: float = _setting(
        5.0, read_seconds, "S", "how often WebSocket peers are pinged, 0 for never", reload=True
    )
    ws_origins: tuple[str, ...] = _setting(
        (),
        read_list,
        "URL,...",
        "further origins of web pages that may connect by WebSocket, besides loopback and this machine; * for all",
        reload=True,
    )
    ws_deflate: str = _setting(
        "off",
        read_choice("off", "on"),
        "off|on",
        "whether WebSocket messages are compressed (permessage-deflate) for peers that offer it",
        reload=True,
    )
    ws_deflate_max: int = _setting(1_000, read_count, "N", "WebSocket peers with compressed messages", reload=True)
    ws_login_header: str | None = _setting(
        None,
        str,
        "NAME",
        "header of WebSocket requests in which a proxy names the user; see ws_login_proxies",
        reload=True,
    )
    ws_login_proxies: tuple[str, ...] = _setting(
        (), read_networks, "ADDRESS,...", "addresses or networks of proxies that may send ws_login_header", reload=True
    )
    ws_login_cookie: str | None = _setting(
        None, str, "NAME", "cookie of WebSocket requests with a signed token that names the user", reload=True
    )
    ws_login_key: Path | None = _setting(
        None, Path, "FILE", "key of at least 32 bytes with which the tokens in cookies are signed"
    )
    connections_max: int = _setting(10_000, read_count, "N", "connections", reload=True)
    inbound_bytes_max: int = _setting(
        64 << 20, read_count, "N", "bytes of all peers that wait to be completed or handled", reload=True
    )
    inbound_address_bytes_max: int = _setting(
        48 << 20, read_count, "N", "bytes of all peers of one address that wait to be completed or handled", reload=True
    )
    handshake_s: float = _setting(
        10.0, read_seconds, "S", "how long a TLS or WebSocket handshake or an HTTP request may take", reload=True
    )
    linger_ms_max: int = _setting(
        10_000,
        read_count,
        "N",
        "milliseconds for which requests of a peer that has closed are still handled",
        reload=True,
    )
    logins_waiting_max: int = _setting(1_000, read_count, "N", "logins that wait for their password check", reload=True)
    logins_known_max: int = _setting(
        10_000, read_count, "N", "users and addresses that are remembered for good or failed logins", reload=True
    )
    outbox_soft_bytes: int = _setting(
        1 << 20, read_count, "N", "queued bytes above which a slow peer's changes are conflated", reload=True
    )
    outbox_hard_bytes: int = _setting(
        64 << 20, read_count, "N", "queued bytes at which a slow peer is closed", reload=True
    )
    outbox_total_bytes: int = _setting(
        128 << 20, read_count, "N", "queued bytes of all slow peers at which the slowest is closed", reload=True
    )
    journal: Path | None = _setting(None, Path, "DIR", "keep a journal of all events in this directory")
    journal_fsync: str = _setting(
        "interval",
        read_choice("always", "interval", "never"),
        "WHEN",
        "when to sync: always, before an event is sent; interval, once a second; never, left to the operating system",
    )
    journal_flush_ms: int = _setting(50, read_count, "MS", "how often events are written to the journal")
    journal_rules: tuple[tuple[str, str], ...] = _setting(
        (),
        read_densities,
        "RULE=>DENSITY;...",
        "how densely paths are recorded: every, skip or sample 1s; the first rule that matches counts",
        between=";",
    )
    journal_values: str = _setting(
        "every",
        read_choice("every", "changed"),
        "WHICH",
        "every: all changes are recorded; changed: a value is not recorded again while it stays the same",
    )
    journal_groups: tuple[str, ...] = _setting(
        (),
        read_list,
        "GROUP,...",
        "groups of the users that may query the past; default: all peers without a users file, else none",
        reload=True,
    )
    journal_segment_mb: int = _setting(64, read_count, "MB", "size at which a segment of the journal is sealed")
    journal_segment_s: float = _setting(3600.0, read_seconds, "S", "age at which a segment of the journal is sealed")
    journal_keep_mb: int = _setting(0, read_amount, "MB", "size beyond which old segments are dropped, 0 for never")
    journal_keep_s: float = _setting(0.0, read_seconds, "S", "age at which segments are dropped, 0 for never")
    journal_buffer_mb: int = _setting(256, read_count, "MB", "memory for events that wait while the disk fails")
    journal_bus: str | None = _setting(None, str, "NAME", "name of this bus in its journal, if not that of the host")
    journal_cursors_max: int = _setting(
        4, read_count, "N", "trees and histories of the journal kept in memory between two of their pages", reload=True
    )
    replay_events_max: int = _setting(
        100_000, read_count, "N", "events of the past that a fetch with since may replay", reload=True
    )
    past_bytes_max: int = _setting(
        32 << 20, read_count, "N", "bytes of a tree of the past that is read for a get, a fetch or pages", reload=True
    )
    radar: Address | None = _setting(
        None,
        read_address,
        "HOST:PORT",
        f"serve Radar, the bus in a browser, in a process beside the daemon; the flag alone means {RADAR}",
        alone=RADAR,
    )
    alarms: Path | None = _setting(
        None, Path, "FILE", "raise the alarms of this TOML file, in a process beside the daemon; needs a journal"
    )
    announce: str | None = _setting(
        None,
        read_announced_name,
        "NAME",
        "announce the daemon by mDNS; the flag alone takes the name of the host, and a port that is not the usual one",
        alone="",
    )
    log_level: str = _setting(
        "info",
        read_choice("debug", "info", "warning", "error"),
        "LEVEL",
        "debug, info, warning or error, to standard error",
        reload=True,
    )
    unasked: frozenset[str] = frozenset()
    """Not a setting: the transports with a default address while another transport has an explicit one. If such a
    default is in use, the daemon goes on without that transport."""


TRANSPORTS = ("tcp", "ws", "unix", "binary", "binary_unix")
"""The settings that are addresses, in the order of the ready line."""


class Setting(NamedTuple):
    """One row of the table."""

    name: str
    default: Any
    read: Callable[[str], Any]
    metavar: str
    help: str
    reload: bool
    between: str = ","
    """Separator between the members of a list."""
    alone: str | None = None
    """Value of the flag when it is given without one; None if it needs a value."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "JET_" + self.name.upper()

    def value(self, given: Any, source: str) -> Any:
        """Return the setting from a text (or, from TOML, a number or list)."""
        text = self.between.join(map(str, given)) if isinstance(given, list) else str(given)
        try:
            return self.read(text)
        except ValueError as problem:
            raise ConfigError(f"{source}: {self.name} cannot be {text!r}: {problem}") from None


def _settings() -> list[Setting]:
    rows = []
    for one in dataclasses.fields(Config):
        about = one.metadata
        if not about:
            continue
        rows.append(
            Setting(
                one.name,
                one.default,
                about.get("read") or partial(read_count, most=about.get("most")),
                about.get("metavar", "N"),
                about["help"],
                about.get("reload", True),
                about.get("between", ","),
                about.get("alone"),
            )
        )
    return sorted(rows, key=lambda row: row.name.endswith("_max"))


SETTINGS = _settings()
_BY_NAME = {row.name: row for row in SETTINGS}


def shown(value: Any) -> str:
    """Return the value of a setting as a user would write it."""
    if value is None:
        return OFF
    return ",".join(value) if isinstance(value, tuple) and not isinstance(value, Address) else str(value)


def parser() -> argparse.ArgumentParser:
    """Return the parser for the command line of ``jetd``."""
    made = argparse.ArgumentParser(
        prog="jetd",
        description="The Jet daemon: keeps the tree of states and methods, routes requests, notifies fetchers.",
        epilog=(
            "Each option can also be given as an environment variable (JET_TCP for --tcp) or in the TOML file "
            '(tcp = "localhost:11122"); a flag is stronger than a variable, a variable stronger than the file. '
            "SIGTERM stops the daemon, SIGHUP makes it read users and settings again."
        ),
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"jetd {jetbus.__version__}")
    made.add_argument("--config", metavar="FILE", help="TOML file with settings")
    for row in SETTINGS:
        default = "none" if row.default in (None, ()) else shown(row.default)
        text = f"{row.help} (default {default})"
        alone: dict[str, Any] = {} if row.alone is None else {"nargs": "?", "const": row.alone}
        made.add_argument(row.flag, dest=row.name, metavar=row.metavar, help=text, **alone)
    return made


def load(arguments: Sequence[str], environment: Mapping[str, str]) -> Config:
    """Return the settings from flags, environment and file."""
    flags = vars(parser().parse_args(arguments))
    file = flags.pop("config") or environment.get("JET_CONFIG")
    _warn_of_unknown(environment)
    values = _from_file(Path(file)) if file else {}
    for row in SETTINGS:
        # An empty variable counts as not set.
        if environment.get(row.variable):
            values[row.name] = row.value(environment[row.variable], row.variable)
        if flags[row.name] is not None:
            values[row.name] = row.value(flags[row.name], row.flag)
    # An address was chosen: then the daemon also starts if a default of another transport is taken.
    if any(values.get(name) is not None for name in TRANSPORTS):
        values["unasked"] = frozenset(TRANSPORTS) - values.keys()
    config = Config(**values)
    if config.outbox_soft_bytes > config.outbox_hard_bytes:
        raise ConfigError(
            "outbox_soft_bytes is above outbox_hard_bytes; a slow peer would be closed before it is conflated"
        )
    return config


_OTHERS_VARIABLES = {"JET_CONFIG", "JET_URL", "JET_CONTEXT"}


def _warn_of_unknown(environment: Mapping[str, str]) -> None:
    known = {row.variable for row in SETTINGS}
    for name in sorted(environment):
        if name.startswith("JET_") and name not in known | _OTHERS_VARIABLES:
            log.warning("there is no setting for the environment variable %s%s", name, _near(name, known))


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else "; jetd --help lists all settings"


def _from_file(path: Path) -> dict[str, Any]:
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}; give an existing file to --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} is not TOML: {problem}") from None
    values = {}
    for name, value in given.items():
        row = _BY_NAME.get(name)
        if row is None:
            raise ConfigError(f"{path}: there is no setting {name!r}{_near(name, _BY_NAME)}")
        values[name] = row.value(value, str(path))
    return values
