"""The manifest of the tables: which files they consist of, how far they have come, what is carried to the next batch.

It is replaced as a whole, and that is the moment a batch happens. A file that it does not name is no part of any
table, whatever lies about after a crash; so readers never see half a batch.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jetbus.spark.errors import NotTables

__all__ = ["File", "Manifest", "Trash", "read_manifest", "write_manifest"]

FILE = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class File:
    """One Parquet file, by its path within the directory of all tables."""

    path: str
    bytes: int


@dataclass(frozen=True)
class Trash:
    """A file that a compaction has replaced; readers of an older manifest may still want it for a while."""

    path: str
    at_s: float


@dataclass(frozen=True)
class Manifest:
    """All that is known about the tables."""

    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    batch: int = 0
    """How many batches have been committed."""
    seqs: dict[str, int] = field(default_factory=dict)
    """The last event of each bus that is in the tables."""
    clock_us: dict[str, int] = field(default_factory=dict)
    """And when it was."""
    tables: dict[str, list[File]] = field(default_factory=dict)
    open: dict[str, list[File]] = field(default_factory=dict)
    """The rows that each stage carries to the next batch."""
    trash: list[Trash] = field(default_factory=list)

    def files(self) -> set[str]:
        """Every file that must stay."""
        named = [file.path for files in (*self.tables.values(), *self.open.values()) for file in files]
        return {*named, *(gone.path for gone in self.trash)}


def read_manifest(directory: Path) -> Manifest:
    """The manifest as it is now; ``NotTables`` if there is none."""
    try:
        told = json.loads((directory / FILE).read_bytes())
        if told["format"] != FORMAT:
            raise NotTables(
                f"{directory} has tables of format {told['format']}, this jetbus knows {FORMAT}; update jetbus"
            )
        return Manifest(
            id=told["id"],
            batch=told["batch"],
            seqs=told["seqs"],
            clock_us=told["clock_us"],
            tables={name: [File(**file) for file in files] for name, files in told["tables"].items()},
            open={name: [File(**file) for file in files] for name, files in told["open"].items()},
            trash=[Trash(**gone) for gone in told["trash"]],
        )
    except FileNotFoundError:
        raise NotTables(f"{directory} holds no tables; run the pipeline with --tables {directory} first") from None
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise NotTables(
            f"{directory / FILE} is damaged ({problem}); restore it from a backup or make the tables anew"
        ) from None


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Make this the manifest, all at once and durably."""
    fresh = directory / f"{FILE}.new"
    with fresh.open("w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, **asdict(manifest)}, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(directory / FILE)
    holder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(holder)
    finally:
        os.close(holder)
