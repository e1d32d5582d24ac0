"""The pages and their fenced blocks, and how a page is followed: as a reader would, block by block, in an empty folder.

What is done with a block is said by its fence: the language, and a second word.

    python              runs in the page's own module; a comment behind a print is what it prints
    python NAME.py      is that file; so are toml, json and any other language with the name of a file
    console             each `$ ` line is typed into a terminal, and prints what stands below it
    console stays       is left running in another terminal; it prints what stands below it, and more later
    sh                  is typed line by line, with figures and places that fit a test
    sh run, python run  runs by itself
    json, toml          is what a daemon is sent, tells or is configured with

A print in a loop has what all its rounds print in the comment lines right after the loop. In the output of a console
`...` stands for anything, an instant for any instant, a decimal for any decimal, and the usual ports for those of the
test.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest

from support.jet import Terminal
from support.spark import machines

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
DEADLINE_S = 30.0
CONSOLE_DEADLINE_S = 200.0
"""A busy machine takes long to start Spark."""
COLUMNS = 100
USUAL_PORTS = {"tcp": "11122", "ws": "11123", "binary": "11124", "radar": "11128"}
FREE_PORTS = {"JET_TCP": "127.0.0.1:0", "JET_WS": "127.0.0.1:0", "JET_UNIX": "off"}

_FENCED = re.compile(r"^( *)```(\w*)(?: +(\S+)[^\n]*)?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_PRINTED = re.compile(r"^ *(?:print\(.*\)  )?# (.*)$", re.MULTILINE)
_INSTANT = r"(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00|Z)?"
_DECIMAL = r"-?\d+\.\d+"
_VARYING = re.compile(rf"({_INSTANT})|({_DECIMAL})|(\.\.\.)|( {{2,}})|(-{{3,}})")
"""What differs from run to run, and what it may be then. Spark prints an instant without the zeros at its end."""
_MAY_BE = (f"{_INSTANT} *", _DECIMAL, ".*?", " {2,}", "-{3,}")


class Block(NamedTuple):
    """A fenced block: where it is, its language, the second word of its fence, its text, the heading it is below."""

    page: Path
    line: int
    language: str
    word: str
    text: str
    heading: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_file(self) -> bool:
        return "." in self.word

    @property
    def is_shell(self) -> bool:
        """Return True if it is plain shell, which some test types."""
        return (self.language, self.word) == ("sh", "")

    @property
    def commands(self) -> list[str]:
        """The lines of a block of shell, without comments."""
        lines = [re.sub(r"(?:^|\s+)#.*$", "", line).strip() for line in self.text.splitlines()]
        return [line for line in lines if line]


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text, end, heading = page.read_text(encoding="utf-8"), 0, ""
    for found in _FENCED.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        heading = (_HEADING.findall(text, end, found.start()) or [heading])[-1]
        end = found.end()
        yield Block(page, line, found[2], found[3] or "", found[4], heading)


def without_blocks(page: Path) -> str:
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def run_block(block: str, names: dict[str, Any]) -> None:
    """Run a block as if typed into a module, or into `python -m asyncio` if it awaits."""
    code = compile(block, "<page>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    awaited = eval(code, names)  # noqa: S307 - our own page
    if code.co_flags & inspect.CO_COROUTINE:

        async def limited() -> None:
            await asyncio.wait_for(awaited, DEADLINE_S)

        asyncio.run(limited())


def run_page(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every Python block of a page runs, in order, and prints what its comments say."""
    blocks = [block for block in blocks_of(DOCS / page) if (block.language, block.word) == ("python", "")]
    assert len(blocks) > 3
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        run_block(block.text, names)
        assert capsys.readouterr().out.splitlines() == _PRINTED.findall(block.text), block


class Screen(Terminal):
    """A command in a terminal whose whole output is compared with what a page shows."""

    def more(self) -> bool:
        """Read what it prints next; False if it has ended."""
        return self._read(time.monotonic() + CONSOLE_DEADLINE_S)

    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", self.text)


class Reader:
    """Follows a page from its first block to its last; what it has left running ends with it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        self._names: dict[str, Any] = {"__name__": "page"}
        self._ports: dict[str, str] = {}
        self._running: list[Screen] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JET_", "COLUMNS"))}
        self.environment = {
            **kept,
            **FREE_PORTS,
            "JET_BINARY": "off",
            "JET_BINARY_UNIX": "off",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(folder / "config"),
            "SPARK_MASTER": "local[2]",
            **machines.environment(),
            "NO_COLOR": "1",
            "TERM": "dumb",
        }

    def follow(self, page: Path) -> None:
        for block in blocks_of(page):
            self.do(block)

    def do(self, block: Block) -> None:
        """Do with a block what its fence says; what another test does with it is left out."""
        if block.is_file:
            (self.folder / block.word).write_text(self._at_our_ports(block.text), encoding="utf-8")
        elif (block.language, block.word) == ("python", ""):
            self._run_here(block)
        elif block.language == "console":
            self._type(block)

    def _run_here(self, block: Block) -> None:
        self._capsys.readouterr()
        run_block(self._at_our_ports(block.text), self._names)
        assert self._capsys.readouterr().out.splitlines() == _PRINTED.findall(block.text), block

    def _type(self, block: Block) -> None:
        for command, shown in commands_of(block.text):
            if block.word == "stays":
                screen = self._start(f"exec {command}")
                self._running.append(screen)
                self._leave(screen, like(shown, ended=False))
                continue
            with self._start(command) as screen:
                while screen.more():
                    pass
                code = screen.process.wait(DEADLINE_S)
            printed = self._at_usual_ports(screen.plain())
            assert code == 0, f"{block.where} $ {command}\nexit code {code}\n{printed}"
            assert re.fullmatch(like(shown), printed), f"{block.where} $ {command}\n{printed}\nis not like\n{shown}"

    def _start(self, command: str) -> Screen:
        ours = self._at_our_ports(command).replace("jet radar ", "jet radar --listen localhost:0 ")
        return Screen(["/bin/sh", "-c", ours], self.environment, COLUMNS, self.folder)

    def _leave(self, screen: Screen, pattern: str) -> None:
        """Wait until it has printed what the page shows."""
        while not re.match(pattern, self._at_usual_ports(screen.plain())):
            assert screen.more(), f"it ended with {screen.plain()!r}, not like {pattern!r}"
            self._learn(screen.plain())

    def _learn(self, printed: str) -> None:
        """Remember where the daemon listens that a page has started; it is the local one from now on."""
        for kind, port in re.findall(r"\b(tcp|ws|binary)=[\d.]+:(\d+)", printed):
            self._ports[port] = USUAL_PORTS[kind]
            if kind == "tcp":
                self.serve(f"jet://127.0.0.1:{port}")
        for port in re.findall(r"http://localhost:(\d+)/", printed):
            self._ports[port] = USUAL_PORTS["radar"]

    def serve(self, url: str) -> None:
        """Peers and commands that name no daemon find this one."""
        self.environment["JET_URL"] = url
        self._monkeypatch.setenv("JET_URL", url)

    def _at_usual_ports(self, text: str) -> str:
        for ours, usual in self._ports.items():
            text = text.replace(f":{ours}", f":{usual}")
        return text

    def _at_our_ports(self, text: str) -> str:
        for ours, usual in self._ports.items():
            text = text.replace(f"localhost:{usual}", f"127.0.0.1:{ours}")
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for screen in reversed(self._running):
            if screen.process.poll() is None:
                screen.process.send_signal(signal.SIGINT)
                screen.end()
            screen.__exit__(kind, error, trace)


def commands_of(text: str) -> list[tuple[str, str]]:
    """The commands of a console, each with what it prints."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    assert not parts[0].strip(), f"a console begins with a command: {text}"
    commands = [command.partition("  #")[0].strip() for command in parts[1::2]]
    return list(zip(commands, parts[2::2], strict=True))


def like(shown: str, *, ended: bool = True) -> str:
    """The pattern of an output, as it is or, unless it has ended, as it begins."""
    pattern = "".join(_line_like(line) for line in shown.splitlines())
    return pattern.removesuffix(r"\n") + r"\s*" if ended else pattern


def _line_like(line: str) -> str:
    if line.strip() == "...":
        return r"(?:.*\n)*?"
    pattern, rest = "", line.rstrip()
    while varying := _VARYING.search(rest):
        pattern += re.escape(rest[: varying.start()]) + _MAY_BE[(varying.lastindex or 1) - 1]
        rest = rest[varying.end() :]
    return pattern + re.escape(rest) + r" *\n"
