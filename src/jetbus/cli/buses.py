"""Which bus a command is about: by option, environment, the context in use, or else the local one.

A context is a bus with a name: its URL, user, password and certificate authority. Contexts live in one TOML file that
only its owner may read.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from jetbus.cli.failures import Code, Failure, near, usage

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from jetbus.cli.quick import QuickPeer
    from jetbus.peer import PeerAsync

NAME_CHARS_MAX = 64
LOCAL = ("localhost", "127.0.0.1", "::1")
"""Hosts that are this machine."""


@dataclass(frozen=True)
class Bus:
    """Where a daemon is and who one is there. ``url`` None is the peers' own default."""

    url: str | None = None
    user: str | None = None
    password: str | None = None
    ca: str | None = None

    def __post_init__(self) -> None:
        from jetbus.peer.address import read_url

        try:
            read_url(self.url)
        except ValueError as problem:
            raise usage(str(problem)) from None

    @property
    def shown_url(self) -> str:
        """The URL without its password."""
        from jetbus.peer.address import read_url

        return str(read_url(self.url))

    def quick(self, name: str = "jet") -> QuickPeer:
        """A connection for a question or two."""
        from jetbus.cli.quick import QuickPeer

        return QuickPeer(self.url, name=name, **self.login())

    def peer(self, **options: Any) -> PeerAsync:
        """A peer that stays."""
        from jetbus.peer import PeerAsync

        return PeerAsync(self.url, **{"name": "jet", **self.login(), **options})

    def login(self) -> dict[str, Any]:
        """Who one is there and whom to trust, as every peer takes it."""
        return {"user": self.user, "password": self.password, "tls": self.tls()}

    def tls(self) -> ssl.SSLContext | None:
        """Whom to trust, where that is not what the machine trusts."""
        if self.ca is None:
            return None
        import ssl

        try:
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as problem:
            raise usage(f"{self.ca} is no file of certificates ({problem}); give a PEM file to --ca") from None


def find(url: str | None, context: str | None, user: str | None, password_file: str | None, ca: str | None) -> Bus:
    """The bus that options, environment and contexts name, from strong to weak."""
    if url and context:
        raise usage("--url and --context name two buses; give one of them")
    bus = _named(url, context)
    if ca:
        bus = replace(bus, ca=ca)
    if user is not None and user != bus.user:
        bus = replace(bus, user=user, password=None)
    if password_file is not None:
        bus = replace(bus, password=read_password(password_file))
    elif bus.user is not None and bus.password is None:
        bus = replace(bus, password=ask_password(f"password of {bus.user}: "))
    return bus


def _named(url: str | None, context: str | None) -> Bus:
    if url:
        return Bus(url)
    if context:
        return Contexts.load()[context]
    if os.environ.get("JET_URL"):
        return Bus(os.environ["JET_URL"])
    if os.environ.get("JET_CONTEXT"):
        return Contexts.load()[os.environ["JET_CONTEXT"]]
    contexts = Contexts.load()
    return contexts[contexts.current] if contexts.current else Bus()


@functools.cache  # stdin tells it once
def read_password(file: str) -> str:
    """The first line of a file, or of stdin for ``-``."""
    from pathlib import Path

    try:
        text = sys.stdin.readline() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as problem:
        cause = getattr(problem, "strerror", None) or "it is not UTF-8 text"
        raise usage(f"the password cannot be read from {file} ({cause}); give a readable file or -") from None
    return text.split("\n", 1)[0].rstrip("\r")


def ask_password(prompt: str) -> str:
    """Ask for a password on the terminal, unseen."""
    if not sys.stdin.isatty():
        raise usage(
            "a password is needed and there is no terminal to ask on; give --password-file FILE, or - for stdin"
        )
    import getpass

    return getpass.getpass(prompt, sys.stderr)


def contexts_file() -> Path:
    """Where the contexts live."""
    from pathlib import Path

    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "jet" / "contexts.toml"


class Contexts:
    """The contexts of this user; ``save`` writes them."""

    def __init__(self, file: Path, buses: dict[str, Bus], current: str | None) -> None:
        self.file = file
        self.buses = buses
        self.current = current

    @classmethod
    def load(cls) -> Contexts:
        file = contexts_file()
        try:
            data = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return cls(file, {}, None)
        except OSError as problem:
            raise usage(f"{file} cannot be read ({problem.strerror}); let its owner read it, or give --url") from None
        return cls._read(file, data)

    @classmethod
    def _read(cls, file: Path, data: bytes) -> Contexts:
        import tomllib

        try:
            told = tomllib.loads(data.decode())
        except (tomllib.TOMLDecodeError, UnicodeError) as problem:
            raise usage(f"{file} is not TOML ({problem}); correct it, or remove it") from None
        entries = told.get("contexts", {})
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise usage(f"{file} has no table of contexts; remove it and use `jet context add`")
        names = {field.name for field in fields(Bus)}
        for name, entry in entries.items():
            if wrong := [key for key in entry if key not in names or not isinstance(entry[key], str)]:
                raise usage(f"{file}: context {name} has a wrong entry {wrong[0]}; correct it there")
        current = told.get("current")
        return cls(
            file, {name: Bus(**entry) for name, entry in entries.items()}, current if current in entries else None
        )

    def __getitem__(self, name: str) -> Bus:
        if name not in self.buses:
            meant = near(name, self.buses)
            hint = f"did you mean {meant}?" if meant else "`jet context ls` lists them"
            raise Failure(f"there is no context {name}; {hint}", Code.NOT_FOUND)
        return self.buses[name]

    def save(self) -> None:
        """Write the file, whole or not at all, for nobody else's eyes."""
        from jetbus.cli.files import replacing

        lines = [] if self.current is None else [f"current = {_toml(self.current)}\n"]
        for name, bus in self.buses.items():
            lines.append(f"\n[contexts.{_toml(name)}]\n")
            told = ((field.name, getattr(bus, field.name)) for field in fields(Bus))
            lines += [f"{key} = {_toml(value)}\n" for key, value in told if value is not None]
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(self.file, 0o600) as file:
                file.write_text("".join(lines), encoding="utf-8")
        except OSError as problem:
            raise usage(f"{self.file} cannot be written ({problem.strerror}); let this user write its folder") from None


def _toml(text: str) -> str:
    """A TOML string; JSON's escapes are a part of TOML's, and DEL must be escaped, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
