"""The pages on peers and rules, and the examples with peers: all of it runs, against a real daemon."""

from __future__ import annotations

import inspect
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import pytest

import jetbus
from jetbus.rules import PATH_TESTS, TYPES, VALUE_TESTS, text
from jetbus.testing import RunningDaemon, running_daemon
from support.docs import DEADLINE_S, DOCS, ROOT, run_page

EXAMPLES = ROOT / "examples"
PAGES = ["peers.md", "rules.md"]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningDaemon]:
    """A daemon that peers without a URL connect to."""
    with running_daemon() as running:
        monkeypatch.setenv("JET_URL", running.url)
        yield running


# -- the pages


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("page", PAGES)
def test_pages_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every Python block of a page runs, in order, and prints what its comments say."""
    run_page(page, capsys)


def rows(heading: str) -> list[list[str]]:
    """The rows of the tables of a section of rules.md, the code words of each cell."""
    section = (DOCS / "rules.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in cells]


def word(cell: str) -> str:
    return cell.strip("`")


def test_keywords_are_documented() -> None:
    """The tables of keywords list exactly the keywords of `jetbus.rule`, in their order."""
    keywords = [name for name in inspect.signature(jetbus.rule).parameters if name != "text"]
    assert [word(row[0]) for row in rows("Keywords")] == keywords


def test_path_words_are_documented() -> None:
    """The wire words of the path keywords are the daemon's path operators."""
    words = {word(row[1]) for row in rows("Keywords") if word(row[0]) not in ("value", "fields")}
    beside = {"caseInsensitive", "sort", "byValue", "descending", "from", "to"}
    assert words - beside == set(PATH_TESTS)


def test_operators_are_documented() -> None:
    """The tables of operators list the signs, words and functions there are."""
    with_sign = [row for row in rows("Operators in text") if len(row) == 4]
    without = [row for row in rows("Operators in text") if len(row) == 3]
    assert {word(sign): word(wire) for sign, wire, _, _ in with_sign} == text._OPERATORS
    functions = {word(row[-2]): word(row[-3]) for row in [*with_sign, *without]}
    assert set(functions.values()) == set(VALUE_TESTS)
    operands = {"is_type": "number"}
    for name, wire in functions.items():
        assert getattr(jetbus, name)(operands.get(name, 1)).operator == wire


def test_the_grammar_is_that_of_the_parser() -> None:
    """The page shows the grammar that stands in the parser's module."""
    page = (DOCS / "rules.md").read_text(encoding="utf-8")
    grammar = inspect.cleandoc((text.__doc__ or "").split("::\n\n")[1].split("\n\n")[0].replace("\n    ", "\n"))
    lines = [line.strip() for line in grammar.splitlines()]
    assert [line for line in lines if line not in page] == []
    assert [name for name in TYPES if name not in lines[-1]] == []


# -- the examples


class Example:
    """A running example: its lines as they come, its end."""

    def __init__(self, name: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / f"{name}.py"), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def line(self) -> str | None:
        """The next line, None at the end."""
        return self._lines.get(timeout=DEADLINE_S)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> tuple[int, str]:
        """Wait for the end: exit code and what went to stderr."""
        assert self.process.stderr is not None
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        error = self.process.stderr.read()
        return self.process.wait(DEADLINE_S), error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()


COMMANDS = [("thermostat",), ("pump",), ("chat", "ann"), ("todo", "serve"), ("todo", "watch"), ("todo", "add", "x")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_examples_need_a_daemon(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a daemon an example says so in one line and ends with exit code 3."""
    monkeypatch.setenv("JET_URL", f"unix://@no-daemon-{os.getpid()}")
    with Example(*command) as example:
        code, error = example.end()
    assert code == 3
    assert len(error.splitlines()) == 1
    assert "no daemon" in error


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("command", [("thermostat",), ("pump",), ("chat", "ann"), ("todo", "serve")], ids=" ".join)
def test_examples_end_on_ctrl_c(command: tuple[str, ...]) -> None:
    """Ctrl-C ends an example without a word."""
    with Example(*command) as example:
        assert example.line()
        assert example.interrupt() == (130, "")


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("command", [("thermostat",), ("pump",), ("todo", "serve")], ids=" ".join)
def test_examples_end_by_themselves(command: tuple[str, ...]) -> None:
    """With --for an example ends by itself."""
    with Example(*command, "--for", "0.1") as example:
        assert example.end() == (0, "")


@pytest.mark.usefixtures("daemon")
def test_thermostat() -> None:
    """The thermostat heats to its setpoint, takes another one within limits and refuses the rest."""
    with Example("thermostat"), jetbus.Peer() as peer:
        peer.wait_for("thermostat/heating value=true", timeout_s=DEADLINE_S)
        peer.wait_for("thermostat/temperature value>16", timeout_s=DEADLINE_S)
        peer.set("thermostat/setpoint", 10)
        peer.wait_for("thermostat/heating value=false", timeout_s=DEADLINE_S)
        with pytest.raises(jetbus.JetError) as refused:
            peer.set("thermostat/setpoint", 100)
        assert "between 5 and 30" in str(refused.value.data)
        with pytest.raises(jetbus.JetError):
            peer.set("thermostat/setpoint", "warm")
        assert peer.get("thermostat/setpoint") == {"thermostat/setpoint": 10}


@pytest.mark.usefixtures("daemon")
def test_pump() -> None:
    """The pump adapts a speed beyond its limit, refuses nonsense and is started and stopped by methods."""
    with Example("pump"), jetbus.Peer() as peer:
        peer.wait_for("pump/stop", timeout_s=DEADLINE_S)
        assert not peer.set("pump/speed_rpm", 1200).adapted
        assert peer.set("pump/speed_rpm", 9000).warning == "the pump turns at most 3000 rpm"
        for nonsense in (-1, "fast", None, True):
            with pytest.raises(jetbus.JetError):
                peer.set("pump/speed_rpm", nonsense)
        peer.call("pump/start")
        with pytest.raises(jetbus.Refused, match="runs already") as refused:
            peer.call("pump/start")
        assert refused.value.own_code == 1001
        assert peer.get("pump/**") == {"pump/running": True, "pump/speed_rpm": 3000}
        peer.call("pump/stop")
        assert peer.get("pump/running") == {"pump/running": False}


@pytest.mark.usefixtures("daemon")
def test_chat() -> None:
    """Those who chat see who comes, what they write, line by line, and who goes."""
    with Example("chat", "ann") as ann:
        assert ann.line() == "* you are ann; write, and end with Ctrl-D"
        with Example("chat", "bob") as bob:
            assert ann.line() == "* bob is here"
            assert {bob.line(), bob.line()} == {"* ann is here", "* you are bob; write, and end with Ctrl-D"}
            for line in ("hello", "ann", "ä"):
                bob.say(line)
            assert [ann.line() for _ in range(3)] == ["bob: hello", "bob: ann", "bob: ä"]
            ann.say("hello bob")
            assert bob.line() == "ann: hello bob"
            with Example("chat", "ann") as other:
                assert other.end() == (1, "there is a ann already; take another name\n")
            assert bob.end() == (0, "")
        assert ann.line() == "* bob has left"
        assert ann.end() == (0, "")


def done(*words: str) -> tuple[str | None, int, str]:
    with Example("todo", *words) as command:
        return (command.line(), *command.end())


def test_todo(daemon: RunningDaemon) -> None:
    """Items are added, ticked off and removed; who watches sees the list in order of title."""
    with Example("todo", "serve") as service, Example("todo", "watch") as watch:
        assert service.line() == f"to-do list at {daemon.url}"
        assert watch.line() == "-- 0 to do"
        assert done("add", "write") == ("item 1", 0, "")
        assert [watch.line() for _ in range(2)] == ["-- 1 to do", "[ ] 1 write"]
        assert done("add", "read") == ("item 2", 0, "")
        assert [watch.line() for _ in range(3)] == ["-- 2 to do", "[ ] 2 read", "[ ] 1 write"]
        assert done("done", "1") == ("ok", 0, "")
        assert [watch.line() for _ in range(3)] == ["-- 2 to do", "[ ] 2 read", "[x] 1 write"]
        assert done("remove", "2") == ("ok", 0, "")
        assert [watch.line() for _ in range(2)] == ["-- 1 to do", "[x] 1 write"]
        assert done("remove", "2") == (None, 1, "there is no item 2\n")
