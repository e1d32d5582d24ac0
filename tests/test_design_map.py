"""The map in docs/design.md: every package has its sentence, and every function of the walks exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "jetbus"
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
MAP = re.search(r"^## Map\n(.*?)^## ", DESIGN, re.DOTALL | re.MULTILINE)
NAMES = sorted(set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", MAP[1]))) if MAP else []
NOT_ON_THE_MAP = {"errors", "json_types", "loops", "luapattern", "paths", "schema", "hbk", "supervise"}
"""Single modules that everybody shares; the table of imports has them."""


def find_module(name: str) -> tuple[Path, list[str]]:
    """Return the file of the longest prefix of a dotted name that is a module, and the rest of the name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        place = PACKAGE.joinpath(*parts[:length])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.exists():
                return file, parts[length:]
    raise AssertionError(f"there is no module for {name}")


def defines(body: list[ast.stmt], names: list[str]) -> bool:
    """Return True if the statements define a name, and that the next one in its class, and so on."""
    if not names:
        return True
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == names[0]:
            return defines(statement.body, names[1:])
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        if any(isinstance(target, ast.Name) and target.id == names[0] for target in targets):
            return len(names) == 1
    return False


@pytest.mark.parametrize("name", NAMES)
def test_functions_of_the_map_exist(name: str) -> None:
    """A function or class that a walk names is defined where the walk says."""
    file, rest = find_module(name)
    assert rest, f"{name} names a module, not a function"
    assert defines(ast.parse(file.read_text(encoding="utf-8")).body, rest), f"{file} does not define {'.'.join(rest)}"


def test_every_package_is_on_the_map() -> None:
    """The table has a row for every package, and for nothing else."""
    assert MAP is not None
    packages = {
        entry.stem for entry in PACKAGE.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()
    } - {"__init__"}
    assert set(re.findall(r"^\| `(\w+)` \|", MAP[1], re.MULTILINE)) == packages - NOT_ON_THE_MAP


def test_walks_have_functions() -> None:
    """There are five walks with many functions, so that the tests above test something."""
    assert MAP is not None
    assert len(re.findall(r"^\*\*.*\*\*.*:$", MAP[1], re.MULTILINE)) == 5
    assert len(NAMES) > 40
