"""Public names: exports of modules, their docstrings and the page that lists them agree."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

API_PAGE = Path(__file__).parent.parent / "docs" / "api.md"
PUBLIC = ["jetbus", "jetbus.daemon", "jetbus.errors", "jetbus.journal", "jetbus.rules"]

_HEADING = re.compile(r"^## `?([\w.]+)`?$")
_BULLET = re.compile(r"^- `([\w.]+)`: \S")


@pytest.fixture(params=PUBLIC)
def module(request: pytest.FixtureRequest) -> ModuleType:
    """A public module."""
    return importlib.import_module(request.param)


def _sort_key(name: str) -> tuple[int, str]:
    """Return the sort key of ruff's RUF022: CONSTANTS, Classes, then the rest."""
    if name.isupper():
        return 0, name
    return (1 if name[:1].isupper() else 2), name


def _documented(text: str) -> dict[str, list[str]]:
    """The names that the page lists below the heading of each module."""
    names: dict[str, list[str]] = {}
    listed: list[str] = []
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            listed = names.setdefault(heading[1], [])
        elif line.startswith("## "):
            listed = []
        elif bullet := _BULLET.match(line):
            listed.append(bullet[1])
    return names


def test_exports_are_sorted_and_unique(module: ModuleType) -> None:
    """A public module lists what it exports, once each and in the order of the linter."""
    names = module.__all__
    assert list(names) == sorted(set(names), key=_sort_key)


def test_exports_exist(module: ModuleType) -> None:
    """Every exported name is there."""
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_exports_have_docstrings(module: ModuleType) -> None:
    """Every exported class and function says in a docstring of its own what it is."""
    missing = []
    for name in module.__all__:
        exported = getattr(module, name)
        if not inspect.isclass(exported) and not inspect.isfunction(exported):
            continue
        text = vars(exported).get("__doc__") if inspect.isclass(exported) else exported.__doc__
        made_up = dataclasses.is_dataclass(exported) and (text or "").startswith(f"{name}(")
        if not text or made_up:
            missing.append(name)
    assert missing == []


def test_exports_are_documented(module: ModuleType) -> None:
    """The page of the API lists exactly the exported names of a module, each once and with a word on it."""
    listed = _documented(API_PAGE.read_text(encoding="utf-8")).get(module.__name__, [])
    assert sorted(listed) == sorted(module.__all__)


def test_only_public_modules_are_documented() -> None:
    """The page of the API has no module that is not public."""
    assert sorted(_documented(API_PAGE.read_text(encoding="utf-8"))) == PUBLIC
