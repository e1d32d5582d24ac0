"""What a journal says of itself, in ``journal.json``: its format, the name of its bus and an id that is made once."""

from __future__ import annotations

import json
import socket
import uuid
from pathlib import Path
from typing import NamedTuple

from jetbus.journal.errors import NotAJournal
from jetbus.journal.segment import replace_file

FORMAT = 1
FILE = "journal.json"


class Identity(NamedTuple):
    """Which journal it is."""

    bus: str
    id: str


def read_identity(directory: Path) -> Identity:
    """The identity of the journal in a directory; ``NotAJournal`` if there is none."""
    try:
        told = json.loads((directory / FILE).read_bytes())
        found = Identity(str(told["bus"]), str(told["id"]))
        version = told["format"]
    except (FileNotFoundError, NotADirectoryError):
        raise NotAJournal(f"{directory} is no journal: there is no {FILE} in it") from None
    except (ValueError, KeyError, TypeError):
        raise NotAJournal(
            f"{directory / FILE} is damaged; restore it from a backup, or remove it and name the bus anew"
        ) from None
    if version != FORMAT:
        raise NotAJournal(f"{directory} has format {version}, this jetbus knows {FORMAT}; use a later jetbus")
    return found


def ensure_identity(directory: Path, bus: str | None = None) -> Identity:
    """The identity of the journal, made if there is none; a bus given by name is named so from now on."""
    if not (directory / FILE).exists():
        identity = Identity(bus or socket.gethostname(), str(uuid.uuid4()))
    else:
        found = read_identity(directory)
        identity = found._replace(bus=bus or found.bus)
        if identity == found:
            return found
    write_identity(directory, identity)
    return identity


def write_identity(directory: Path, identity: Identity) -> None:
    """Say what a journal is, all at once."""
    text = json.dumps({"format": FORMAT, **identity._asdict()})
    replace_file(directory / FILE, text.encode() + b"\n")
