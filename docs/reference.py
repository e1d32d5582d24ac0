"""Brings what is generated in the pages up to date: public names, errors, metrics, settings and commands.

python docs/reference.py --write

Each generated part of a page stands between a comment that names it and the comment that ends it; the pages of the
folder `cli` are generated as a whole. Generated parts come from docstrings, signatures and the tables of the code; a
test compares it with the pages.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from jetbus.cli.words import WORDS, Word
from jetbus.daemon.config import SETTINGS, Setting, shown
from jetbus.daemon.metrics import NUMBERS, RATES, Number
from jetbus.errors import Invalid, JetError
from jetbus.rules import rule

DOCS = Path(__file__).parent
END = "<!-- end -->\n"
MODULES = (
    "jetbus",
    "jetbus.daemon",
    "jetbus.errors",
    "jetbus.journal",
    "jetbus.rules",
    "jetbus.bridge",
    "jetbus.player",
    "jetbus.recorder",
    "jetbus.spark",
    "jetbus.testing",
)
CONSTANTS = {
    "ALTERNATIVES_MAX": "how many texts the list of one operator may have.",
    "EVERYTHING": "the rule without any test.",
    "MESSAGES": "the message that goes with each code.",
    "PATH_TESTS": "the path operators by name; adding one is one row.",
    "RULES_MAX": "how many tests a rule may have.",
    "TYPES": "the types that `isType` and sorting know.",
    "UNCHANGED": "returned by `on_set`: accepted, but the state keeps its value for now.",
    "VALUE_TESTS": "the value operators by name; adding one is one row.",
    "__version__": "the version of the package, as text.",
}
"""What is no class and no function has no docstring that could be read at run time."""
GIVEN = ("Fetch", "Journal", "Method", "Mirror", "Published", "Sorted", "State")
"""Classes that nobody makes by their name: other calls give them."""
TASKS: dict[str, dict[str, tuple[str, ...]]] = {
    "jetbus": {
        "Be on the bus": ("Peer", "PeerAsync"),
        "Own states and methods": (
            *("State", "StateAsync", "Method", "MethodAsync", "Adapted", "UNCHANGED", "Refused", "Blob"),
        ),
        "Set and call": ("SetResult",),
        "Follow events": ("Event", "Fetch", "FetchAsync", "Mirror", "MirrorAsync", "Sorted", "SortedAsync"),
        "Name rules and values": (
            *("rule", "parse_rule", "Rule", "above", "at_least", "below", "at_most", "equal", "not_equal", "is_type"),
            *("has_one_of", "has_all_of"),
        ),
        "Handle errors": ("JetError",),
    },
    "Peer": {
        "connect": ("connect", "connect_async", "close", "close_async", "authenticate", "authenticate_async"),
        "own": ("add_state", "add_state_async", "add_method", "add_method_async", "state", "method", "batch"),
        "set and call": ("set", "set_async", "call", "call_async"),
        "read": ("get", "get_async", "get_all", "get_all_async", "wait_for", "wait_for_async"),
        "follow": ("fetch", "fetch_async", "mirror", "mirror_async"),
        "look back": ("history", "history_async", "tree", "tree_async"),
    },
}
"""Names of a module, and members of a class, by what one wants to do; all others follow in their own order."""
SHOWN = {"Daemon": ("start", "stop", "reload", "config_as_listening")}
"""Classes of which only some members are meant for others."""


_RULE_WORDS = inspect.signature(rule).parameters.keys() - {"text"}
"""Keywords of a rule."""


# -- words


def summary(thing: Any) -> str:
    """The first paragraph of a docstring, as Markdown."""
    paragraph = (inspect.getdoc(thing) or "").split("\n\n")[0]
    return " ".join(paragraph.split()).replace("``", "`")


def call(name: str, function: Any) -> str:
    """How a function is called: names and defaults, without types."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    # Every request for a rule takes the same twenty keywords, which a table shows once: in the row of ``rule``.
    if name != "rule" and {one.name for one in parameters} >= _RULE_WORDS:
        parameters = [one for one in parameters if one.name not in _RULE_WORDS]
        shown = str(inspect.Signature(parameters)).removesuffix(")") + ", keywords of rule)"
    else:
        shown = str(inspect.Signature(parameters))
    return re.sub(
        r"<(?:built-in )?function (\w+)[^>]*>|<(?:object|[\w.]+) [^>]*>", lambda found: found[1] or "...", name + shown
    )


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def table(*rows: tuple[str, ...]) -> str:
    """A table whose first row is its head."""
    head, *body = rows
    return row(*head) + row(*["---"] * len(head)) + "".join(row(*cells) for cells in body)


# -- public names


def names(module_name: str) -> str:
    """A line for each exported name, then a table for each class that has members."""
    module = importlib.import_module(module_name)
    lines = []
    for task, wanted in _by_task(module_name, module.__all__):
        lines += [f"\n**{task}**\n\n"] if task else []
        lines += [f"- `{name}`: {_about(name, getattr(module, name))}\n" for name in wanted]
    return "".join(lines) + "".join(_classes(module))


def _by_task(owner: str, known: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Names by what one wants to do; those of no task belong to the last one."""
    names = list(known)
    tasks = {task: [name for name in wanted if name in names] for task, wanted in TASKS.get(owner, {"": ()}).items()}
    placed = {name for wanted in tasks.values() for name in wanted}
    tasks[[*tasks][-1]] += [name for name in names if name not in placed]
    yield from tasks.items()


def _about(name: str, thing: Any) -> str:
    if name in CONSTANTS:
        return CONSTANTS[name]
    return summary(thing)


def _classes(module: ModuleType) -> Iterator[str]:
    ordered = [name for _, wanted in _by_task(module.__name__, module.__all__) for name in wanted]
    exported = {name: getattr(module, name) for name in ordered}
    for name, thing in exported.items():
        is_plain_class = inspect.isclass(thing) and not issubclass(thing, Exception)
        if (
            not is_plain_class
            or name.endswith("Async")
            or thing.__module__.startswith("jetbus.rules") != (module.__name__ == "jetbus.rules")
        ):
            continue
        twin = exported.get(f"{name}Async")
        rows = list(_members(thing, twin))
        if rows:
            title = f"{name} and {name}Async" if twin else name
            made = "" if name in GIVEN else f"`{call(name, thing)}`\n\n"
            yield f"\n### {title}\n\n{made}" + table(("member", "meaning"), *rows)


def _members(kind: type, twin: type | None) -> Iterator[tuple[str, str]]:
    members = dict(_own(kind))
    order = [name for _, wanted in _by_task(kind.__name__, members) for name in wanted]
    for name, member in ((name, members[name]) for name in order):
        about = summary(getattr(twin, name, member))
        if not about or name not in SHOWN.get(kind.__name__, (name,)):
            continue
        is_awaited = _is_awaited(getattr(twin or kind, name, None))
        shown = call(name, member) if inspect.isfunction(member) else name
        yield f"`{shown}`", about + (" *awaited*" if is_awaited else "")


def _is_awaited(member: Any) -> bool:
    if not inspect.isfunction(member):
        return False
    return inspect.iscoroutinefunction(member) or "Awaitable" in str(inspect.signature(member).return_annotation)


def _own(kind: type) -> Iterator[tuple[str, Any]]:
    """The public members that jetbus has written, in the order of the code."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("jetbus"):
            continue
        for name, member in vars(base).items():
            plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            is_member = inspect.isfunction(plain) or isinstance(plain, property | functools.cached_property)
            if is_member and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, plain


# -- errors


def errors() -> str:
    """The errors of the bus: class, code, key of data, meaning."""
    rows = [
        (f"{'&nbsp;' * 4 * depth}`{kind.__name__}`", _code(kind), _key(kind), summary(kind))
        for depth, kind in _tree(JetError)
    ]
    return table(("error", "code", "key of `data`", "meaning"), *rows)


def other_errors(root: type[Exception]) -> Callable[[], str]:
    def made() -> str:
        rows = [(f"{'&nbsp;' * 4 * depth}`{kind.__name__}`", summary(kind)) for depth, kind in _tree(root)]
        return table(("error", "meaning"), *rows)

    return made


def _tree(root: type[Exception], depth: int = 0) -> Iterator[tuple[int, type[Exception]]]:
    """An error and those below it, as long as they are ours."""
    yield depth, root
    for kind in root.__subclasses__():
        if kind.__module__ == root.__module__:
            yield from _tree(kind, depth + 1)


def _code(kind: type[Exception]) -> str:
    named = [base for base in kind.__mro__ if "code" in vars(base)]
    return str(getattr(kind, "code", "")) if named and named[0] is not JetError else ""


def _key(kind: type[Exception]) -> str:
    if not issubclass(kind, Invalid) or "key" not in vars(kind):
        return ""
    return f"`{kind.key}`"


# -- metrics


def metrics() -> str:
    """The figures of the daemon: state below $jet/, metric, kind, meaning."""
    return table(("state", "metric", "kind", "meaning"), *(_figure(number) for number in NUMBERS))


def _figure(number: Number) -> tuple[str, ...]:
    states = [number.name, *([RATES[number.name]] if number.name in RATES else [])]
    return ", ".join(f"`$jet/{state}`" for state in states), f"`{number.metric}`", number.kind, number.help


# -- settings


def settings() -> str:
    """One row a setting."""
    return table(("setting", "flag", "variable", "default", "SIGHUP", "meaning"), *map(_setting, SETTINGS))


def _setting(setting: Setting) -> tuple[str, ...]:
    default = "none" if setting.default in (None, ()) else f"`{shown(setting.default)}`"
    taken_over = "yes" if setting.reload else "restart"
    flag = f"`{setting.flag} {setting.metavar}`"
    return f"`{setting.name}`", flag, f"`{setting.variable}`", default, taken_over, setting.help


# -- words


def words() -> str:
    """The words that newcomers look for: a row each, with the page that says more."""
    rows = [
        (f"**{name}**" + (f"<br>{', '.join(word.others)}" if word.others else ""), _plain(word.text), _shown(word))
        for name, word in WORDS.items()
    ]
    return table(("word", "here", "more"), *rows)


def _plain(text: str) -> str:
    """Text in which a star is a star; within backquotes it is one anyway."""
    return text.replace("*", "\\*")


def _shown(word: Word) -> str:
    page = f"[{word.page.partition('#')[0].removesuffix('.md').removeprefix('howto/')}]({word.page})"
    return f"`{word.command}`<br>{page}" if word.command else page


# -- pages


CLI = runpy.run_path(str(DOCS / "cli_reference.py"))


def _parts() -> dict[str, dict[str, Callable[[], str]]]:
    """Return the generated parts by page and name, each with the function that makes it."""
    from jetbus.journal.journal_errors import JournalError
    from jetbus.spark.spark_errors import JetSparkError

    return {
        "api.md": {name: functools.partial(names, name) for name in MODULES},
        "errors.md": {
            "errors": errors,
            "errors of the journal": other_errors(JournalError),
            "errors of Spark": other_errors(JetSparkError),
        },
        "daemon.md": {"settings": settings, "metrics": metrics},
        "words.md": {"words": words},
        "cli.md": {"commands": CLI["reference"]},
    }


PARTS = _parts()
COMMAND_PAGES: Callable[[], dict[str, str]] = CLI["pages"]


def with_parts(page: str, text: str) -> str:
    """The text of a page with its generated parts brought up to date."""
    for name, made in PARTS[page].items():
        start = f"<!-- {name}: made by docs/reference.py -->\n"
        before, found, rest = text.partition(start)
        if not found:
            raise LookupError(f"{page} has no place for {name}: write {start!r} and {END!r} into it")
        text = before + start + made() + END + rest.partition(END)[2]
    return text


def main() -> None:
    for page in PARTS:
        path = DOCS / page
        path.write_text(with_parts(page, path.read_text(encoding="utf-8")), encoding="utf-8")
    commands = COMMAND_PAGES()
    for old in (DOCS / "cli").glob("*.md"):
        if f"cli/{old.name}" not in commands:
            old.unlink()
    for page, text in commands.items():
        (DOCS / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python docs/reference.py --write")
    main()
