"""Files that a command writes: there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path, mode: int) -> Iterator[Path]:
    """A file beside the target that takes its place at the end, with this mode; it goes if anything is in the way."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(descriptor)
    fresh = Path(name)
    try:
        yield fresh
        fresh.chmod(mode)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
