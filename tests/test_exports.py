"""Public names: exports of modules, their docstrings and the page that lists them agree."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import jetbus
from jetbus.schema import Described, make_schema

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


TAKES_ANY_NAME = ("call", "call_async", "config", "config_async")
"""Methods whose keywords are the business of somebody else: a method of the bus, or the daemon."""


@pytest.mark.parametrize("name", sorted(name for name in jetbus.__all__ if inspect.isclass(getattr(jetbus, name))))
def test_options_are_shown_by_name(name: str) -> None:
    """No public method hides its options behind ** or *: ``help(Peer.add_state)`` shows each of them."""
    kind = getattr(jetbus, name)
    members = inspect.getmembers(kind, inspect.isfunction)
    public = {member: function for member, function in members if not member.startswith("_")} | {"__init__": kind}
    hidden = [
        f"{name}.{member}: {parameter}"
        for member, function in public.items()
        if member not in TAKES_ANY_NAME and function.__module__.startswith("jetbus.peer")
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    assert hidden == []


def test_shown_options_are_taken() -> None:
    """Options that the signature of a method shows are those that it takes, with defaults that mean nothing."""
    shown = inspect.signature(jetbus.Peer.add_state).parameters
    assert {"on_set", "unit", "minimum", "stale_s", "check", "type"} <= shown.keys()
    assert {"equals", "starts_with", "value", "sort_by"} <= inspect.signature(jetbus.Peer.fetch).parameters.keys()
    assert "on_set" not in inspect.signature(jetbus.Peer.state).parameters
    assert make_schema(int, dict.fromkeys(Described.__annotations__)) == make_schema(int, {})  # type: ignore[arg-type]
    for option, parameter in inspect.signature(jetbus.Peer.fetch).parameters.items():
        assert option in ("self", "text", "callback") or parameter.kind is parameter.KEYWORD_ONLY
