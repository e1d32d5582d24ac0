"""Files that users write for the pipeline: TOML with one named entry after the other, such as ``[alarm.hot]``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from jetbus.spark.errors import BadOption

__all__ = ["read_entries"]


def read_entries(
    file: str | Path, kind: str, most: int, instead: str, *, option: str | None = None
) -> dict[str, dict[str, Any]]:
    """The entries of a kind by their names, at most so many; ``instead`` is what to do with more.

    What is wrong with the file is told of the ``option`` that names it: by default ``alarms`` for the kind ``alarm``.
    """
    option = option or f"{kind}s"
    try:
        content = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as problem:
        raise BadOption(option, f"cannot read {str(file)!r}: {problem.strerror}") from problem
    except ValueError as problem:  # no UTF-8, or no TOML
        raise BadOption(option, f"{str(file)!r} is no TOML: {problem}") from problem
    entries = content.get(kind)
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise BadOption(option, f"{str(file)!r} has no {option}; begin each with [{kind}.NAME]")
    if len(entries) > most:
        raise BadOption(option, f"{len(entries)} {option} are more than {most}; {instead}")
    return entries
