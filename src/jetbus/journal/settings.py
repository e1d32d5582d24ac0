"""Settings of a journal's writer, with defaults. They are checked on construction."""

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
    """Settings of a writer.

    >>> Settings(fsync="always", keep_s=7 * 86_400).compression
    'lz4'
    """

    fsync: Fsync = "interval"
    """Events are forced to disk before a commit returns, every ``fsync_ms``, or when the system decides."""
    flush_ms: int = 50
    """Interval at which the owner of a writer commits."""
    flush_events: int = 10_000
    """Number of events after which the owner commits earlier."""
    fsync_ms: int = 1000
    segment_bytes: int = 64 * 1024 * 1024
    """Size at which a segment is sealed."""
    segment_age_s: float = 3600
    """Age at which a segment is sealed."""
    keep_bytes: int | None = None
    """Total size beyond which the oldest segments are dropped; the newest stays."""
    keep_s: float | None = None
    """Age of its last event at which a segment is dropped; the newest stays."""
    keep_names: str = "keep_bytes, keep_s"
    """Names of these two settings in messages; programs with settings of their own have other names."""
    compression: Compression | None = "lz4"
    bus: str | None = None
    """Name of the bus; by default the journal's present name, else the host's."""
    only_changes: bool = False
    """True if a value is not recorded again while it stays the same."""
    buffered_bytes_max: int = 256 * 1024 * 1024
    """Memory for events while the disk fails; beyond it the oldest are dropped and counted as missed."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                words = ", ".join(str(choice) for choice in choices)
                raise ValueError(f"{name} must be one of {words}, not {getattr(self, name)!r}")
        for name, least in _AT_LEAST.items():
            number = getattr(self, name)
            if number is not None and number < least:
                raise ValueError(f"{name} must be at least {least}, not {number!r}")
