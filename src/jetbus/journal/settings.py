"""What can be set about writing a journal, with its defaults. Checked when made, so that nobody else has to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fsync = Literal["always", "interval", "never"]
Compression = Literal["lz4", "zstd"]

_CHOICES: dict[str, tuple[str | None, ...]] = {
    "fsync": ("always", "interval", "never"),
    "compression": ("lz4", "zstd", None),
}
_AT_LEAST = {
    "flush_ms": 1,
    "flush_events": 1,
    "fsync_ms": 1,
    "segment_bytes": 4096,
    "segment_age_s": 1,
    "keep_bytes": 4096,
    "keep_s": 1,
    "buffered_bytes_max": 4096,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a journal is written.

    >>> Settings(fsync="always", keep_s=7 * 86_400).compression
    'lz4'
    """

    fsync: Fsync = "interval"
    """When the disk must have it: before a commit returns, every ``fsync_ms``, or when the system likes."""
    flush_ms: int = 50
    """How often the owner of a writer commits."""
    flush_events: int = 10_000
    """How many events it lets wait at most before it commits."""
    fsync_ms: int = 1000
    segment_bytes: int = 64 * 1024 * 1024
    """A segment of this size is sealed."""
    segment_age_s: float = 3600
    """A segment of this age is sealed, whatever its size."""
    keep_bytes: int | None = None
    """Old segments are dropped while all together are bigger; the newest stays."""
    keep_s: float | None = None
    """Segments whose last event is older are dropped; the newest stays."""
    compression: Compression | None = "lz4"
    bus: str | None = None
    """The name of the bus; the host's if the journal has none yet."""
    buffered_bytes_max: int = 256 * 1024 * 1024
    """What waits in memory while the disk refuses; beyond it the oldest events are dropped and counted as missed."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                words = ", ".join(str(choice) for choice in choices)
                raise ValueError(f"{name} is one of {words}, not {getattr(self, name)!r}")
        for name, least in _AT_LEAST.items():
            given = getattr(self, name)
            if given is not None and given < least:
                raise ValueError(f"{name} is at least {least}, not {given!r}")
