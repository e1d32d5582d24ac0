"""Imports go one way: who may know whom, as the table of the design has it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import jetbus

PACKAGE = Path(jetbus.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

WORDS = ("errors", "json_types", "paths", "luapattern", "rules", "schema")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": ("json_types",),
    "json_types": (),
    "paths": (),
    "luapattern": (),
    "schema": ("errors", "json_types"),
    "hbk": WORDS,
    "entries": WORDS,
    "loops": (),
    "supervise": (),
    "discovery": ("errors", "json_types"),
    "programs": (),
    "rules": ("errors", "json_types", "paths", "luapattern"),
    "wire": WORDS,
    "bus": (*WORDS, "wire"),
    "peer": (*WORDS, "loops", "wire", "journal"),
    "bridge": (*WORDS, "loops", "wire", "peer"),
    "journal": WORDS,
    "recorder": (*WORDS, "loops", "wire", "peer", "journal", "hbk"),
    "player": (*WORDS, "loops", "wire", "peer", "journal"),
    "daemon": (*WORDS, "loops", "wire", "bus", "journal", "discovery"),
    "testing": (*WORDS, "loops", "wire", "bus", "journal", "daemon"),
    "alarms": (*WORDS, "entries", "loops", "wire", "peer", "journal"),
    "spark": (*WORDS, "entries", "loops", "wire", "peer", "journal", "alarms"),
    "radar": (*WORDS, "loops", "wire", "peer", "journal"),
    "demo": (*WORDS, "peer", "spark"),
    "cli": (
        *(*WORDS, "loops", "wire", "bus", "peer", "bridge", "journal", "recorder", "player", "daemon", "testing"),
        *("alarms", "entries", "spark", "radar", "demo", "hbk", "programs", "discovery"),
    ),
}
"""Each part of the house and the parts it may import besides itself; parts that are not built yet are simply absent."""

ROOT_MAY_IMPORT = ("errors", "rules", "peer")
"""What the package itself re-exports; the peers only when they are asked for."""

ONLY_IMPORTED_BY: dict[str, tuple[str, ...]] = {
    "pyarrow": ("journal", "peer", "spark", "radar"),
    "pyspark": ("spark",),
    "deltalake": ("spark",),
    "sqlglot": ("spark", "alarms"),
}
NEVER_IMPORTED_BY: dict[str, tuple[str, ...]] = {
    "asyncio": (*WORDS, "wire", "bus"),
    "socket": (*WORDS, "wire", "bus"),
    "time": ("bus",),
}
NOT_LOADED_AT_FIRST = ["asyncio", "socket", "jetbus.peer", "jetbus.daemon", "jetbus.bus"]


class Import(NamedTuple):
    """One imported module: by which part of the house, where, and its full name."""

    part: str
    where: str
    module: str
    for_types: bool = False
    """True if only type checkers import it."""


def _part_of(source: Path) -> str:
    """The part of the house a source file belongs to; empty for the package itself."""
    first = source.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def _names(node: ast.AST, package: list[str]) -> Iterator[str]:
    """The full names a statement may import: ``from a import b`` may mean the module ``a.b``."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package[: len(package) - node.level + 1] if node.level else []
        module = ".".join([*above, *([node.module] if node.module else [])])
        yield from (f"{module}.{alias.name}" for alias in node.names)


def _imports_of(source: Path) -> Iterator[Import]:
    """Every import in a file, also inside functions and for type checking only."""
    inside = source.relative_to(PACKAGE)
    package = ["jetbus", *inside.parts[:-1]]
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for_types = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in branch.body
    }
    for node in ast.walk(tree):
        for name in _names(node, package):
            where = f"{inside}:{getattr(node, 'lineno', 0)}"
            yield Import(_part_of(source), where, name, node in for_types)


IMPORTS = [found for source in SOURCES for found in _imports_of(source)]


def _imported_part(module: str) -> str:
    """The part of the house an imported name is in; empty for the package itself and for everybody else's modules."""
    names = module.split(".")
    return names[1] if names[0] == "jetbus" and len(names) > 1 and names[1] in MAY_IMPORT else ""


def _is(module: str, library: str) -> bool:
    return module == library or module.startswith(library + ".")


def test_the_house_has_its_first_parts() -> None:
    """The parts that a bus needs are there, and their imports are seen."""
    assert {found.part for found in IMPORTS} >= {"errors", "rules", "wire", "bus", "daemon"}
    assert any(found.part == "bus" and _imported_part(found.module) == "wire" for found in IMPORTS)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(PACKAGE)))
def test_every_file_is_in_the_table(source: Path) -> None:
    """Every file of the package belongs to a part of which the table says whom it may import."""
    assert _part_of(source) in {"", *MAY_IMPORT}


@pytest.mark.parametrize("part", ["", *MAY_IMPORT], ids=["jetbus", *MAY_IMPORT])
def test_imports_go_one_way(part: str) -> None:
    """A part imports itself and the parts below it, and nothing else of the house."""
    allowed = {"", part, *(MAY_IMPORT[part] if part else ROOT_MAY_IMPORT)}
    wrong = [found for found in IMPORTS if found.part == part and _imported_part(found.module) not in allowed]
    assert wrong == []


def test_nothing_imports_the_commands() -> None:
    """Nothing but the commands themselves imports the commands."""
    assert [found for found in IMPORTS if _is(found.module, "jetbus.cli") and found.part != "cli"] == []


@pytest.mark.parametrize("library", ONLY_IMPORTED_BY)
def test_heavy_libraries_stay_in_their_parts(library: str) -> None:
    """Arrow and Spark are loaded only by the parts that are about them; anybody may name their types."""
    parts = ONLY_IMPORTED_BY[library]
    loaded = [found for found in IMPORTS if _is(found.module, library) and not found.for_types]
    assert [found for found in loaded if found.part not in parts] == []


@pytest.mark.parametrize("library", NEVER_IMPORTED_BY)
def test_the_brain_does_no_io(library: str) -> None:
    """The wire and the bus know neither sockets nor an event loop."""
    parts = NEVER_IMPORTED_BY[library]
    assert [found for found in IMPORTS if _is(found.module, library) and found.part in parts] == []


def test_the_package_loads_little() -> None:
    """Importing the package loads neither peers nor the daemon nor an event loop, so that programs start quickly."""
    program = f"import sys, jetbus; print([name for name in {NOT_LOADED_AT_FIRST} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
