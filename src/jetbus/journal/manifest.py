"""The manifest of a journal: which stretch of the log is in Parquet, and in which files.

``manifest.json`` is replaced as a whole, and that is the moment a compaction or a pruning happens: events up to
``upto`` are read from the files it names, later ones from segments. So nobody ever sees an event twice or misses one,
whatever other files lie about.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from jetbus.journal.errors import NotAJournal
from jetbus.journal.segment import replace_file

FILE = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Span:
    """One Parquet file: consecutive events of one day."""

    file: str
    """Its path within the journal."""
    first: int
    last: int
    ts_min_us: int
    ts_max_us: int
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What is in Parquet."""

    upto: int = 0
    """Every event up to this seq is in Parquet or was, before it was pruned."""
    spans: tuple[Span, ...] = ()
    """Oldest first."""
    replaced: tuple[str, ...] = ()
    """The segments that the last compaction replaced; they go as soon as it is committed."""
    joined: tuple[str, ...] = ()
    """The Parquet files that the last compaction made part of others; they go with the next."""


def read_manifest(directory: Path) -> Manifest:
    """The manifest as it is now; an empty one if nothing has been compacted yet."""
    try:
        told = json.loads((directory / FILE).read_bytes())
        version = told["format"]
        spans = tuple(Span(**span) for span in told["spans"])
        found = Manifest(told["upto"], spans, tuple(told["replaced"]), tuple(told.get("joined", ())))
    except FileNotFoundError:
        return Manifest()
    except (ValueError, KeyError, TypeError):
        raise NotAJournal(
            f"{directory / FILE} is damaged; restore it from a backup to read the Parquet files"
        ) from None
    if version != FORMAT:
        raise NotAJournal(f"{directory / FILE} has format {version}, this jetbus knows {FORMAT}; use a later jetbus")
    return found


def manifest_mark(directory: Path) -> tuple[int, int, int]:
    """Something that is another one whenever the manifest is another one."""
    try:
        status = (directory / FILE).stat()
    except FileNotFoundError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Make this the manifest, all at once and durably."""
    text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1)
    replace_file(directory / FILE, text.encode() + b"\n")
