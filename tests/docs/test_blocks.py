"""Every fenced block of every page is run, read or compared by some test; which one, its fence says.

The languages of fences are those of `support.docs`. Blocks that can run nowhere here have the second word `elsewhere`
and are counted, so that there is no more of them than was meant.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest

from jetbus.cli.main import jet
from jetbus.daemon.config import SETTINGS, parser
from support.daemon import Daemon
from support.docs import DEADLINE_S, DOCS, PAGES, ROOT, Block, Reader, blocks_of, without_blocks

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
FOLLOWED = {DOCS / name for name in ("daemon.md", "howto/record.md", "howto/secure.md", "howto/service.md")}
"""Pages that are read from top to bottom here."""
WITH_SPARK = {DOCS / name for name in ("tutorial.md", "howto/stage.md")}
"""Those that also use Spark: test_spark_pages.py reads them."""
PYTHON_ELSEWHERE = {
    "README.md": "docs/test_spark_pages.py",
    "docs/spark.md": "docs/test_spark_pages.py",
    "docs/bridge.md": "bridge/test_page.py",
    "docs/history.md": "test_history_docs.py",
    "docs/peers.md": "test_peer_docs.py",
    "docs/rules.md": "test_peer_docs.py",
}
"""Which test runs the plain Python blocks of other pages."""
TEXTS = {"docs/rules.md": "test_peer_docs.py"}
"""Which test reads the blocks of text: a grammar."""
ELSEWHERE: dict[str, int] = {}
"""How many blocks of a page can run on other machines only."""


INDENTED = {"docs/cluster.md"}
"""Pages with blocks that have no fence: commands and settings of a whole cluster, which the tests of Spark start."""


def name_of(block: Block) -> str:
    return str(block.page.relative_to(ROOT))


def is_followed(block: Block) -> bool:
    return block.page in FOLLOWED | WITH_SPARK


def is_in_pair(block: Block) -> bool:
    return block.language in ("python", "js") and block.word in ("own", "watch", "socket")


READ: dict[str, Callable[[Block], bool]] = {
    "followed here": lambda block: is_followed(block) and (block.is_file or block.language in ("python", "console")),
    "run here": lambda block: block.word == "run" and block.language in ("python", "sh"),
    "read here": lambda block: (block.language, block.word) in (("sh", ""), ("json", ""), ("toml", "")),
    "typed by hand": lambda block: block.language == "console" and block.page == ROOT / "README.md",
    "run in pairs by docs/test_pairs.py": is_in_pair,
    "run by another test": lambda block: (
        (block.language, block.word) == ("python", "") and name_of(block) in PYTHON_ELSEWHERE
    ),
    "walked by test_contributing.py": lambda block: block.page == ROOT / "CONTRIBUTING.md",
    "compared by another test": lambda block: block.language == "text" and name_of(block) in TEXTS,
    "exchanged by binary/test_spec.py": lambda block: block.language == "" and block.page.name == "binary-protocol.md",
    "for other machines": lambda block: block.word == "elsewhere",
}
"""What can become of a block."""


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_every_block_is_read_by_a_test(block: Block) -> None:
    """A block has a fence that some test knows; write one of those in support/docs.py."""
    assert [how for how, holds in READ.items() if holds(block)], f"```{block.language} {block.word}"


def test_the_other_tests_are_there() -> None:
    """The tests that are said to run blocks exist."""
    named = {
        *PYTHON_ELSEWHERE.values(),
        *TEXTS.values(),
        "docs/test_pairs.py",
        "binary/test_spec.py",
        "test_contributing.py",
    }
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []


def test_few_blocks_run_elsewhere() -> None:
    """Blocks that nobody runs are as many as were meant."""
    found = Counter(name_of(block) for block in BLOCKS if block.word == "elsewhere")
    assert found == ELSEWHERE


def indented_code(text: str) -> list[str]:
    """Paragraphs that begin with four blanks and do not go on with a list."""
    parts = re.split(r"\n\s*\n", text)
    return [
        now
        for before, now in pairwise(parts)
        if re.match(r" {4}\S", now) and not re.match(r" *(?:[-*]|\d+\.) ", before)
    ]


def test_blocks_have_fences() -> None:
    """Code stands between fences, so that it says what becomes of it."""
    found = {str(page.relative_to(ROOT)) for page in PAGES if indented_code(without_blocks(page))}
    assert found == INDENTED


# -- pages that are followed


def follow(page: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(folder, capsys, monkeypatch) as reader:
        reader.follow(page)


@pytest.mark.parametrize("page", sorted(FOLLOWED), ids=lambda page: page.stem)
def test_pages_are_followed(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who does what a page says, from top to bottom, sees what it shows."""
    follow(page, tmp_path, capsys, monkeypatch)


def test_a_page_that_lies_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A console that shows another output, a command that fails and a print that differs are found."""
    page = tmp_path / "page.md"
    for lie in ("```console\n$ echo one\ntwo\n```\n", "```console\n$ false\n```\n", "```python\nprint(1)  # 2\n```\n"):
        page.write_text(lie)
        monkeypatch.setattr("support.docs.ROOT", tmp_path)
        with pytest.raises(AssertionError):
            follow(page, tmp_path, capsys, monkeypatch)


# -- blocks that run by themselves


def at(daemon: Daemon, text: str) -> str:
    """The text with the usual ports replaced by those of a daemon."""
    tcp, ws = (str(daemon.address(kind)[1]) for kind in ("tcp", "ws"))
    text = text.replace("localhost:11122", f"127.0.0.1:{tcp}").replace("localhost:11123", f"127.0.0.1:{ws}")
    return text.replace('("localhost", 11122)', f'("127.0.0.1", {tcp})')


ALONE = [block for block in BLOCKS if block.word == "run"]


@pytest.mark.parametrize("block", ALONE, ids=lambda block: f"{block.where} {block.language}")
def test_blocks_run(block: Block, daemon: Daemon, tmp_path: Path) -> None:
    """A block that is marked to be run ends with success."""
    command = {"python": [sys.executable, "-c"], "sh": ["sh", "-eu", "-c"]}[block.language]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        [*command, at(daemon, block.text)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_some_blocks_run() -> None:
    """There are blocks to run, so that the test above cannot pass by finding none."""
    assert {block.language for block in ALONE} == {"python", "sh"}


# -- lines of shell that are read


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


def check_pip(words: list[str]) -> None:
    """What is installed is jetbus, or this folder, with extras that there are."""
    assert words[0] == "install"
    for word in words[1:]:
        found = re.fullmatch(r"(?:jetbus|\.)(?:\[([\w,]+)\])?", word)
        assert found, word
        assert set((found[1] or "all").split(",")) <= extras()


def check_jetd(words: list[str]) -> None:
    """All flags are those of jetd."""
    assert parser().parse_args(words)


def check_jet(words: list[str]) -> None:
    """The command is there and takes these words."""
    with click.Context(jet) as context:
        command: Any = jet.get_command(context, words[0])
    assert command, words
    if isinstance(command, click.Group):
        command, words = command.commands[words[1]], words[1:]
    command.make_parser(click.Context(command)).parse_args(words[1:])


def check_make(words: list[str]) -> None:
    assert set(words) <= make_targets()


def check_python(words: list[str]) -> None:
    """A module, a program of this tree or a virtual environment; options of a program are in its text."""
    if words[0] == "-m":
        assert words[1] in ("venv", "pytest", "jetbus.spark.run"), words
        words = words[2:]
    assert all((ROOT / word).exists() for word in words if word.endswith(".py") and "/" in word), words
    program = ROOT / words[0]
    if program.suffix == ".py":
        text = program.read_text(encoding="utf-8")
        assert [word for word in words if word.startswith("--") and f'"{word.split("=")[0]}"' not in text] == []


def check_nothing(_words: list[str]) -> None:
    """A program of the system."""


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "pip": check_pip,
    "jetd": check_jetd,
    "jet": check_jet,
    "make": check_make,
    "python": check_python,
    "python3": check_python,
    ".": check_nothing,
    "apt": check_nothing,
    "systemctl": check_nothing,
}
"""How the words after the name of a program are checked."""


def commands_in(line: str) -> list[list[str]]:
    """The commands of a line, variables that are set before them left out."""
    line = re.sub(r"(?:^|\s)#.*$", "", line)
    parts = [shlex.split(part) for part in re.split(r" && | \| |;", line)]
    return [[word for at, word in enumerate(part) if at or "=" not in word] for part in parts if part]


LINES = [
    pytest.param(line, id=f"{block.where} {line}")
    for block in BLOCKS
    if (block.language, block.word) == ("sh", "") and block.page != DOCS / "cli.md"
    for line in block.text.replace("\\\n", " ").splitlines()
    if commands_in(line)
] + [
    pytest.param(line.removeprefix("$ "), id=f"{block.where} {line}")
    for block in BLOCKS
    if block.language == "console" and block.page == ROOT / "README.md"
    for line in block.text.splitlines()
    if line.startswith("$ ")
]
"""All lines of plain shell; those of cli.md are run by cli/test_examples.py."""


@pytest.mark.parametrize("line", LINES)
def test_lines_of_shell_can_be_meant(line: str) -> None:
    """The programs of a line are known, and their flags, extras, targets and files exist."""
    for program, *words in commands_in(line):
        name = Path(program).name if program != "." else program
        assert name in PROGRAMS, f"{name}: teach test_blocks.py about it, or mark the block as elsewhere"
        PROGRAMS[name](words)


@pytest.mark.parametrize(
    "line",
    [
        "jetd --no-such-flag",
        "pip install 'jetbus[nothing]'",
        "make nothing",
        "jet nothing",
        "jet ls --no-such-flag",
        "rm -rf /",
    ],
)
def test_wrong_lines_are_found(line: str) -> None:
    """A flag, an extra, a target, a command or a program that does not exist is found."""
    with pytest.raises((AssertionError, SystemExit, click.ClickException)):
        test_lines_of_shell_can_be_meant(line)


# -- JSON and TOML


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "json"], ids=lambda block: block.where
)
def test_json_is_json(block: Block) -> None:
    """A block of JSON is one value, or one a line."""
    try:
        json.loads(block.text)
    except json.JSONDecodeError:
        assert [json.loads(line) for line in block.text.splitlines()]


TABLES = {"alarm": {"rule", "when", "clear", "hold", "severity"}, "stage": {"file", "function", "publish", "time"}}
"""The keys of alarms and stages."""


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "toml"], ids=lambda block: block.where
)
def test_toml_has_settings_that_exist(block: Block) -> None:
    """A block of TOML has settings of the daemon, alarms or stages, with names that exist."""
    for name, value in tomllib.loads(block.text).items():
        if name in TABLES:
            assert [set(entry) - TABLES[name] for entry in value.values()] == [set()] * len(value)
        else:
            assert name in {row.name for row in SETTINGS}
