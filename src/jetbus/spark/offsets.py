"""How far a batch of a stream goes, by the log that Spark keeps of its offsets.

Spark decides where a batch ends and writes that down before the batch is made. Who makes it without asking Spark for
its rows reads it here. The log is text: a version, a line of Spark's own, and a line for each source.
"""

from __future__ import annotations

import json
from pathlib import Path

from jetbus.spark.errors import JetSparkError

__all__ = ["Seqs", "ends_of"]

VERSION = "v1"

Seqs = dict[str, int]
"""The last event of each bus."""


def ends_of(checkpoint: Path, number: int) -> Seqs:
    """The last event of each bus that a batch has, or an earlier one had; nothing if there was no such batch."""
    file = checkpoint / "offsets" / str(number)
    try:
        version, _, *sources = file.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except FileNotFoundError:
        return {}
    if version != VERSION or len(sources) != 1:
        raise JetSparkError(f"{file} is not a log of offsets as Spark 4.3 writes it; run the Spark jetbus was made for")
    found: Seqs = json.loads(sources[0])
    return found
