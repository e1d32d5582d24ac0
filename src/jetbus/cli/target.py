"""Target of a command: the bus selected by options, environment or context, or else the local one.

The first of these that is given counts::

    --url, --context          one of them, on the command line
    JET_URL, JET_CONTEXT      in this order
    current context           set by ``jet context use``
    jet://localhost:11122     the default address of peers

A context is a named bus: its URL, user, password and certificate authority. Contexts are stored in one TOML file that
only its owner may read.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from jetbus.cli.exit_codes import Code, Failure, find_similar, usage_error

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from jetbus.peer import PeerAsync
    from jetbus.peer.address import DaemonAddress
    from jetbus.peer.simple import SimplePeer

NAME_CHARS_MAX = 64
LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names of this machine."""


@dataclass(frozen=True)
class Target:
    """The bus of a command, by its options, the environment and contexts."""

    url: str | None = None
    user: str | None = None
    password: str | None = None
    ca: str | None = None
    wait: bool = False
    """True if a command waits for a daemon that does not run yet; not part of a context."""

    def __post_init__(self) -> None:
        from jetbus.peer.address import read_url

        # Here, so that a wrong URL is an error of usage in every command, before anything is done.
        try:
            read_url(self.url)
        except ValueError as problem:
            raise usage_error(str(problem)) from None

    @property
    def address(self) -> DaemonAddress:
        """Address and login, for commands that connect by themselves."""
        from jetbus.peer.address import DaemonAddress

        return DaemonAddress(self.url, self.user, self.password)

    @property
    def shown_url(self) -> str:
        """URL without its password."""
        return str(self.address)

    def connect(self, name: str = "jet") -> SimplePeer:
        """Connect for a few requests, without an event loop."""
        from jetbus.peer.simple import SimplePeer

        return SimplePeer(self.url, name=name, wait=self.wait, **self.get_login())

    def make_peer(self, **options: Any) -> PeerAsync:
        """Create a peer for a command that stays connected."""
        from jetbus.peer import PeerAsync

        return PeerAsync(self.url, **{"name": "jet", "wait": self.wait, **self.get_login(), **options})

    def get_login(self) -> dict[str, Any]:
        """Return the login and TLS options of a peer."""
        return {"user": self.user, "password": self.password, "tls": self._make_tls()}

    def _make_tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for --ca; None leaves the choice to the peer."""
        if self.ca is None:
            return None
        import ssl

        try:
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as problem:
            raise usage_error(f"{self.ca} is not a file of certificates ({problem}); give a PEM file to --ca") from None


_SAVED = [field.name for field in fields(Target) if field.name != "wait"]
"""Fields of a context."""


def find_bus(
    url: str | None,
    context: str | None,
    user: str | None,
    password_file: str | None,
    ca: str | None,
    wait: bool = False,
    file_option: str | None = None,
) -> Target:
    """Return the bus selected by options, environment or context, in this order of precedence."""
    if url and context:
        raise usage_error("--url and --context exclude each other; give one of them")
    bus = replace(_resolve_bus(url, context), wait=bool(wait))
    if ca:
        bus = replace(bus, ca=ca)
    if user is not None and user != bus.user:
        # The password of the context belongs to its own user.
        bus = replace(bus, user=user, password=None)
    if password_file is not None:
        bus = replace(bus, password=read_password(password_file))
    # The prompt comes last, since scripts cannot answer it.
    elif bus.user is not None and bus.password is None:
        bus = replace(bus, password=ask_password(f"password of {bus.user}: ", file_option or "--password-file"))
    return bus


def _resolve_bus(url: str | None, context: str | None) -> Target:
    if url:
        return Target(url)
    if context:
        return Contexts.load()[context]
    if os.environ.get("JET_URL"):
        return Target(os.environ["JET_URL"])
    if os.environ.get("JET_CONTEXT"):
        return Contexts.load()[os.environ["JET_CONTEXT"]]
    contexts = Contexts.load()
    return contexts[contexts.current] if contexts.current else Target()


@functools.cache  # stdin can be read only once
def read_password(file: str) -> str:
    """Return the first line of a file, or of stdin for ``-``."""
    from pathlib import Path

    try:
        text = sys.stdin.readline() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as problem:
        cause = getattr(problem, "strerror", None) or "it is not UTF-8 text"
        raise usage_error(
            f"cannot read the password from {file} ({cause}); give a readable file, or - for stdin"
        ) from None
    return text.split("\n", 1)[0].rstrip("\r")


def ask_password(prompt: str, option: str = "--password-file") -> str:
    """Prompt for a password on the terminal without echo; ``option`` is the one that would name a file instead."""
    if not sys.stdin.isatty():
        raise usage_error(
            f"a password is needed, but there is no terminal to prompt on; give {option} FILE, or - for stdin"
        )
    import getpass

    return getpass.getpass(prompt, sys.stderr)


def get_contexts_file() -> Path:
    """Return the path of the file of contexts."""
    from pathlib import Path

    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "jet" / "contexts.toml"


class Contexts:
    """Contexts of this user; ``save`` writes them."""

    def __init__(self, file: Path, buses: dict[str, Target], current: str | None) -> None:
        self.file = file
        self.buses = buses
        self.current = current

    @classmethod
    def load(cls) -> Contexts:
        file = get_contexts_file()
        try:
            data = file.read_bytes()
        # No context was added yet.
        except (FileNotFoundError, NotADirectoryError):
            return cls(file, {}, None)
        except OSError as problem:
            raise usage_error(f"cannot read {file} ({problem.strerror}); make it readable, or give --url") from None
        return cls._read(file, data)

    @classmethod
    def _read(cls, file: Path, data: bytes) -> Contexts:
        import tomllib

        try:
            settings = tomllib.loads(data.decode())
        except (tomllib.TOMLDecodeError, UnicodeError) as problem:
            raise usage_error(f"{file} is not valid TOML ({problem}); correct it, or remove it") from None
        entries = settings.get("contexts", {})
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise usage_error(f"{file} has no table of contexts; remove it and run `jet context add`")
        names = set(_SAVED)
        for name, entry in entries.items():
            if wrong := [key for key in entry if key not in names or not isinstance(entry[key], str)]:
                raise usage_error(f"{file}: context {name} has an invalid entry {wrong[0]}; correct the file")
        # It may name a context that was removed from the file by hand.
        current = settings.get("current")
        return cls(
            file, {name: Target(**entry) for name, entry in entries.items()}, current if current in entries else None
        )

    def __getitem__(self, name: str) -> Target:
        if name not in self.buses:
            similar = find_similar(name, self.buses)
            hint = f"did you mean {similar}?" if similar else "`jet context ls` lists them"
            raise Failure(f"there is no context {name}; {hint}", Code.NOT_FOUND)
        return self.buses[name]

    def save(self) -> None:
        """Replace the file with one that only its owner can read."""
        from jetbus.cli.output import replace_file

        # The standard library reads TOML, but does not write it.
        lines = [] if self.current is None else [f"current = {_encode_toml(self.current)}\n"]
        for name, bus in self.buses.items():
            lines.append(f"\n[contexts.{_encode_toml(name)}]\n")
            settings = ((name, getattr(bus, name)) for name in _SAVED)
            lines += [f"{key} = {_encode_toml(value)}\n" for key, value in settings if value is not None]
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replace_file(self.file, 0o600) as file:
                file.write_text("".join(lines), encoding="utf-8")
        except OSError as problem:
            raise usage_error(f"cannot write {self.file} ({problem.strerror}); make its folder writable") from None


def _encode_toml(text: str) -> str:
    """Encode a TOML string: the escapes of JSON are valid in TOML, which also requires DEL to be escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
