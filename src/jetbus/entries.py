"""Entries of TOML files that users write, such as ``[alarm.hot]``.

Whatever is wrong with an entry is said with its name, before anything runs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jetbus.errors import JetError
from jetbus.rules import Rule, rule

__all__ = ["BadEntry", "Words", "read_entries", "read_path_rule"]

Words = Mapping[str, type]
"""Keys that an entry may have, and their types."""
_TYPES = {str: "text in quotes", bool: "true or false", list: "a list of texts in quotes"}


class BadEntry(ValueError):
    """A file that cannot be read, or one of its entries that makes no sense."""

    def __init__(self, problem: str, name: str | None = None, kind: str = "") -> None:
        super().__init__(problem, name, kind)
        self.problem = problem
        self.name = name
        """Name of the entry; None if the file itself is wrong."""
        self.kind = kind

    def __str__(self) -> str:
        return self.problem if self.name is None else f"{self.kind} {self.name!r}: {self.problem}"


def read_entries(
    file: str | Path, kind: str, words: Words, *, most: int, instead: str, plural: str | None = None
) -> dict[str, dict[str, Any]]:
    """Return the entries of a kind by name, at most ``most``; ``instead`` is the next step if there are more.

    ``words`` are the keys that an entry may have and their types, ``plural`` is the word of messages for entries.
    """
    plural = plural or f"{kind}s"
    content = read_toml(file)
    entries = content.get(kind)
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise BadEntry(f"{str(file)!r} has no {plural}; begin each with [{kind}.NAME]")
    if len(entries) > most:
        raise BadEntry(f"{len(entries)} {plural} are more than {most}; {instead}")
    for name, entry in entries.items():
        for word, value in entry.items():
            if word not in words:
                raise BadEntry(f"there is no {word!r}; there are {', '.join(words)}", name, kind)
            if not isinstance(value, words[word]):
                raise BadEntry(f"{word} takes {_TYPES[words[word]]}, not {value!r}", name, kind)
    return entries


def read_toml(file: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as problem:
        raise BadEntry(f"cannot read {str(file)!r}: {problem.strerror}") from problem
    except ValueError as problem:  # neither UTF-8 nor TOML
        raise BadEntry(f"{str(file)!r} is not TOML: {problem}") from problem


def read_path_rule(text: str) -> Rule:
    """Return the rule of a text that tests paths only, for those who say the rest in SQL."""
    try:
        wanted = rule(text)
    except JetError as problem:
        raise BadEntry(str(problem)) from problem
    if wanted.value:
        raise BadEntry(f'{text!r} has tests on values; say them in SQL, such as "num > 7"')
    if wanted.sort is not None:
        raise BadEntry(f"{text!r} sorts; order the rows of the result instead")
    return wanted
