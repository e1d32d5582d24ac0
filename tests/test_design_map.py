"""The map in docs/design.md: every package has its sentence, and the walks follow the calls of the sources.

A walk names functions in code style, dotted from the package down. Each name after the first must be reached from one
before it in the same walk. The test reads this from the sources, without running them:

- a function mentions whatever its body reads: functions, classes, constants, and attributes of objects by their last
  name. A call, a callback that is handed over, and a property count alike;
- a mentioned function, class or constant of the package is followed further, ``STEPS_MAX`` steps deep: helpers of a
  module, ``self.helper``, the rows of a table, the methods of a class that is constructed;
- an attribute of another object (``outbox.flush``) is not followed. It is an arrival if the walk names a method
  ``flush`` next. So a walk that leaves out the method through which it goes on fails here.

To mend a failing walk, name the functions that are really called, in the order of the calls. The first name of a walk,
and names of ``STARTED_BY_OTHERS``, need no caller in the sources.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "jetbus"
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
MAP = re.search(r"^## Map\n(.*?)^## ", DESIGN, re.DOTALL | re.MULTILINE)
NAMES = sorted(set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", MAP[1]))) if MAP else []
NOT_ON_THE_MAP = {"entries", "errors", "json_types", "loops", "luapattern", "paths", "schema", "hbk", "supervise"}
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


@pytest.mark.parametrize("name", NAMES)
def test_functions_of_the_map_exist(name: str) -> None:
    """A function or class that a walk names is defined where the walk says."""
    place = read_place(name)
    assert place.name, f"{name} names a module, not a function"
    assert find_definition(place) is not None, f"{place.module} does not define {place.name}"


def test_every_package_is_on_the_map() -> None:
    """The table has a row for every package, and for nothing else."""
    assert MAP is not None
    packages = {
        entry.stem for entry in PACKAGE.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()
    } - {"__init__"}
    assert set(re.findall(r"^\| `(\w+)` \|", MAP[1], re.MULTILINE)) == packages - NOT_ON_THE_MAP


LISTED = re.compile(r"^ {4}(\w+(?:, \w+)*) {2,}\S.*$", re.MULTILINE)
"""A line of the list of modules in the docstring of a package: the first names, and others in the text."""


@pytest.mark.parametrize("package", ["bus", "daemon", "journal", "peer", "radar", "spark", "wire"])
def test_packages_list_modules_that_exist(package: str) -> None:
    """The docstring of a package lists modules that it has, so that a renamed one is renamed there, too."""
    docstring = ast.get_docstring(ast.parse((PACKAGE / package / "__init__.py").read_text(encoding="utf-8"))) or ""
    lines = [*LISTED.finditer(docstring)]
    listed = {name for line in lines for name in (*line[1].split(", "), *re.findall(r"``([a-z]\w*)``", line[0]))}
    modules = {entry.stem for entry in (PACKAGE / package).iterdir() if entry.suffix == ".py" or entry.is_dir()}
    assert len(listed & modules) > 5
    assert listed - modules - {"browser", "jetd"} == set()


def test_walks_have_functions() -> None:
    """There are five walks with many functions, so that the tests above test something."""
    assert MAP is not None
    assert len(re.findall(r"^\*\*.*\*\*.*:$", MAP[1], re.MULTILINE)) == 5
    assert len(NAMES) > 40


# -- the walks follow the calls

STEPS_MAX = 6
"""Functions between two names of a walk that the walk may leave out."""
STARTED_BY_OTHERS = {
    "daemon.journaling.Journaling._flush": "a timer, as long as the daemon runs",
    "daemon.daemon.Daemon._expire_routes": "a timer of the daemon, for the next deadline",
    "spark.source.EventStreamReader.latestOffset": "Spark",
    "spark.source.EventStreamReader.partitions": "Spark",
}
"""Functions of walks that no function of the package calls, and what calls them."""
COMMAND = re.compile(r"[a-z_]+:[a-z_]+")
"""A row of the commands of jet: the module and the function that it loads."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


class Place(NamedTuple):
    """A definition in the sources: its module and its name there, dotted for methods."""

    module: str
    name: str


class Module(NamedTuple):
    """The definitions of a module, and the names that it imports from the package.

    An attribute may be set in several places, which all count.
    """

    definitions: dict[str, list[Definition]]
    imports: dict[str, Place]


@cache
def read_module(name: str) -> Module | None:
    """Return the definitions and imports of a module of the package; None if there is no such module."""
    place = PACKAGE.joinpath(*name.split("."))
    file = next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()), None)
    if file is None:
        return None
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imports = {
        alias.asname or alias.name: Place(node.module.removeprefix("jetbus."), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jetbus.")
        for alias in node.names
        if node.module
    }
    definitions: dict[str, list[Definition]] = {}
    for defined, definition in find_definitions(tree.body, ""):
        definitions.setdefault(defined, []).append(definition)
    return Module(definitions, imports)


def find_definitions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Definition]]:
    """Yield the functions, classes, methods, constants and attributes of ``self`` among some statements."""
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + statement.name, statement
        if isinstance(statement, ast.ClassDef):
            own = f"{prefix}{statement.name}."
            for node in ast.walk(statement):
                targets = node.targets if isinstance(node, ast.Assign) else ()
                for target in (node.target,) if isinstance(node, ast.AnnAssign) else targets:
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                        yield own + target.attr, cast("Definition", node)
            yield from find_definitions(statement.body, own)
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            yield from find_definitions(statement.body, prefix)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield prefix + statement.target.id, statement
        elif isinstance(statement, ast.Assign):
            yield from ((prefix + target.id, statement) for target in statement.targets if isinstance(target, ast.Name))


def find_definition(place: Place) -> tuple[str, list[Definition]] | None:
    """Return the definition at a place, or the one that a class has from its bases, with the module that has it."""
    module = read_module(place.module)
    if module is None:
        return None
    if place.name in module.definitions:
        return place.module, module.definitions[place.name]
    owner, _, name = place.name.rpartition(".")
    for defined in module.definitions.get(owner, ()):
        for base in defined.bases if isinstance(defined, ast.ClassDef) else ():
            there = resolve(Place(place.module, ast.unparse(base)))
            if inherited := find_definition(Place(there.module, f"{there.name}.{name}")):
                return inherited
    return None


class Mentions(NamedTuple):
    """The definitions that a body mentions, and the attributes that it reads of objects of any type."""

    places: set[Place]
    attributes: set[str]


@cache
def find_mentions(place: Place) -> Mentions:
    """Return everything that a definition mentions, nested functions included."""
    mentions = Mentions(set(), set())
    if (found := find_definition(place)) is None:
        return mentions
    for node in (node for definition in found[1] for node in ast.walk(definition)):
        if isinstance(node, ast.Attribute):
            mentions.attributes.add(node.attr)
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                mentions.places.add(Place(place.module, f"{place.name.rpartition('.')[0]}.{node.attr}"))
            elif isinstance(node.value, ast.Name):
                mentions.places.add(resolve(Place(found[0], f"{node.value.id}.{node.attr}")))
        elif isinstance(node, ast.Name):
            mentions.places.add(resolve(Place(found[0], node.id)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and COMMAND.fullmatch(node.value):
            name, _, function = node.value.partition(":")
            mentions.places.add(Place(f"cli.commands.{name}", function))
    return mentions


def resolve(place: Place) -> Place:
    """Return the place where a name is defined, if the module of this place only imports it."""
    module = read_module(place.module)
    first, dot, rest = place.name.partition(".")
    if module is None or first in module.definitions or first not in module.imports:
        return place
    imported = module.imports[first]
    if dot and read_module(f"{imported.module}.{imported.name}"):  # a module
        return resolve(Place(f"{imported.module}.{imported.name}", rest))
    return resolve(Place(imported.module, imported.name + dot + rest))


@cache
def find_reach(start: Place) -> Mentions:
    """Return everything that a definition mentions, and the definitions that it mentions, and so on for some steps."""
    places, attributes, edge = {start}, set[str](), {start}
    for _ in range(STEPS_MAX + 1):
        found = [find_mentions(place) for place in edge]
        attributes |= {attribute for mentions in found for attribute in mentions.attributes}
        edge = {place for mentions in found for place in mentions.places} - places
        places |= edge
    return Mentions(places, attributes)


def read_place(name: str) -> Place:
    """Return the place of a dotted name of a walk."""
    file, rest = find_module(name)
    module = ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    return Place(module, ".".join(rest))


def leads_to(start: Place, end: Place) -> bool:
    """Return True if a definition calls another one, directly or through functions that a walk leaves out."""
    reach = find_reach(start)
    owner, _, name = end.name.rpartition(".")
    return end in reach.places or (owner != "" and name in reach.attributes)


WALKS = {
    title: list(dict.fromkeys(re.findall(r"`([a-z_]+(?:\.\w+)+)`", steps)))
    for title, steps in re.findall(
        r"^\*\*(.*?)\*\*[^\n]*:\n(.*?)(?=^\*\*|\Z)", MAP[1] if MAP else "", re.DOTALL | re.MULTILINE
    )
}


@pytest.mark.parametrize(
    ("before", "name"),
    [
        pytest.param(names[:at], name, id=f"{title}: {name}")
        for title, names in WALKS.items()
        for at, name in enumerate(names)
        if at and name not in STARTED_BY_OTHERS
    ],
)
def test_walks_follow_the_calls(before: list[str], name: str) -> None:
    """A function of a walk is called by one before it, directly or through functions that the walk leaves out."""
    end = read_place(name)
    assert any(leads_to(read_place(start), end) for start in before), f"none of {before} leads to {name}"
