"""The examples, each as the command a newcomer types, against a real daemon."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import jetbus
from support.daemon import Daemon
from support.program import DEADLINE_S, EXAMPLES, example


def done(name: str, *words: str) -> tuple[int, str, str]:
    """Run an example to its end: exit code, stdout, stderr."""
    with example(name, *words) as command:
        lines = []
        while (line := command.line()) is not None:
            lines.append(line)
        code, error = command.end()
    return code, "\n".join(lines), error.strip()


def at(daemon: Daemon) -> tuple[str, str]:
    return "--tcp", daemon.listens["tcp"]


# -- a bad line


def test_a_bad_line_loses_nothing(start_daemon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pump whose connection breaks three times has every value recorded in the end."""
    daemon = start_daemon("--journal", str(tmp_path / "log"))
    monkeypatch.setenv("JET_URL", f"jet://{daemon.listens['tcp']}")
    code, out, error = done("badline", "--values", "300", "--buffer", str(tmp_path / "buffer"))
    assert (code, error) == (0, "")
    assert out.splitlines()[-1] == "301 values are recorded, 0 were dropped"


# -- watch


def test_watch_prints_what_is_there_and_what_happens(daemon: Daemon) -> None:
    """Watch prints a line for each event, of what there is and of what happens, and ends after its count."""
    with daemon.connect() as owner, example("watch", "room/", "--count", "5", *at(daemon)) as watch:
        owner.result("add", {"path": "room/old", "value": {"ü": [1, None]}})
        assert watch.line() == 'add     room/old                         {"ü": [1, null]}'
        owner.result("add", {"path": "hall/new", "value": 1})
        owner.result("add", {"path": "room/new"})
        owner.notify("change", {"path": "room/old", "value": 2})
        owner.result("remove", {"path": "room/old"})
        owner.result("add", {"path": "room/old", "value": 3})
        assert [watch.line() for _ in range(5)] == [
            "add     room/new                         (method)",
            "change  room/old                         2",
            "remove  room/old                         2",
            "add     room/old                         3",
            None,
        ]
        assert watch.end() == (0, "")


def test_watch_shows_the_daemon_itself(daemon: Daemon) -> None:
    """A prefix that starts with $ shows the daemon's own states."""
    code, out, _ = done("watch", "$jet/version", "--count", "1", *at(daemon))
    assert (code, out.split()[:2]) == (0, ["add", "$jet/version"])


def test_watch_ends_on_ctrl_c(daemon: Daemon) -> None:
    """Ctrl-C ends watch without a word."""
    with daemon.connect() as owner, example("watch", *at(daemon)) as watch:
        owner.result("add", {"path": "a", "value": 1})
        watch.lines_to("add     a")
        watch.process.send_signal(signal.SIGINT)
        assert watch.end() == (130, "")


def test_watch_ends_when_nobody_reads_it(daemon: Daemon) -> None:
    """`watch.py | head -1` ends without a complaint."""
    with daemon.connect() as owner:
        owner.result("add", {"path": "a", "value": 1})
        command = f"{shlex.join([sys.executable, str(EXAMPLES / 'watch.py'), *at(daemon)])} | head -1"
        with subprocess.Popen(
            ["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as shell:
            deadline = time.monotonic() + DEADLINE_S
            while shell.poll() is None:
                assert time.monotonic() < deadline
                owner.notify("change", {"path": "a", "value": 2})
                owner.barrier()
            out, error = shell.communicate()
    assert (out.split()[:2], len(out.splitlines()), error) == (["add", "a"], 1, "")


def test_watch_says_that_the_daemon_is_gone(start_daemon: Any) -> None:
    """If the daemon stops, watch says so in one sentence and ends with 3."""
    daemon = start_daemon()
    with example("watch", "$jet/version", *at(daemon)) as watch:
        watch.line()
        daemon.process.terminate()
        daemon.process.wait(DEADLINE_S)
        code, error = watch.end()
    assert code == 3
    assert len(error.splitlines()) == 1
    assert "has closed the connection" in error


@pytest.mark.parametrize(
    ("name", "words"), [("watch", ["a"]), ("set", ["a", "1"]), ("call", ["a"])], ids=["watch", "set", "call"]
)
@pytest.mark.parametrize("address", ["localhost:1", "nowhere", "localhost:99999999", ":x"])
def test_without_a_daemon(name: str, words: list[str], address: str) -> None:
    """Without a daemon each command says in one sentence what to do and ends with 3."""
    code, out, error = done(name, *words, "--tcp", address)
    assert (code, out) == (3, "")
    assert error == f"no Jet daemon answers at {address}; start one (make demo or jetd), or say where it is with --tcp"


# -- set and call


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"result": {}}, "done"),
        ({"result": True}, "done"),
        ({"result": 12}, "done: 12"),
        ({"result": {"warning": {"code": 1, "message": "12 is the limit"}}}, "done, but adapted: 12 is the limit"),
    ],
    ids=["object", "true", "value", "adapted"],
)
def test_set_says_what_the_owner_answered(daemon: Daemon, answer: dict[str, Any], said: str) -> None:
    """Set asks the owner and prints the answer."""
    with daemon.connect() as owner:
        owner.result("add", {"path": "a", "value": 1})
        with example("set", "a", '{"x": [1.5, "ü"]}', *at(daemon)) as command:
            asked = owner.receive(DEADLINE_S)
            assert (asked["method"], asked["params"]) == ("a", {"value": {"x": [1.5, "ü"]}})
            owner.send({"id": asked["id"], **answer})
            assert command.line() == said
            assert command.end() == (0, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["set", "x", "1"], 'there is no "x" on the bus'),
        (["set", "method", "1"], '"method" is a method'),
        (["set", "fixed", "1"], '"fixed" can only be watched'),
        (["call", "fixed"], '"fixed" is a state'),
        (["call", "x"], 'there is no "x" on the bus'),
    ],
    ids=["unknown-state", "method", "fetch-only", "state", "unknown-method"],
)
def test_what_the_daemon_refuses(daemon: Daemon, words: list[str], said: str) -> None:
    """A refusal of the daemon is printed as a sentence, and the exit code is 1."""
    with daemon.connect() as owner:
        owner.result("add", {"path": "method"})
        owner.result("add", {"path": "fixed", "value": 1, "fetchOnly": True})
        code, out, error = done(*words, *at(daemon))
    assert (code, out) == (1, "")
    assert error.startswith(f"refused: {said}")


@pytest.mark.parametrize("text", ["fast", "NaN", "{", "'a'"])
def test_a_value_that_is_not_json(text: str) -> None:
    """A value that is not JSON is refused before anybody is asked."""
    code, _, error = done("set", "a", text)
    assert code == 2
    assert "is not JSON" in error


@pytest.mark.parametrize(
    ("words", "params"), [([], {}), (["[1, 2]"], [1, 2]), (['{"a": 1}'], {"a": 1})], ids=["none", "list", "object"]
)
def test_call_prints_the_result(daemon: Daemon, words: list[str], params: Any) -> None:
    """Call brings its arguments to the owner and prints the result as JSON."""
    with daemon.connect() as owner:
        owner.result("add", {"path": "m"})
        with example("call", "m", *words, *at(daemon)) as command:
            asked = owner.receive(DEADLINE_S)
            assert (asked["method"], asked["params"]) == ("m", params)
            owner.send({"id": asked["id"], "result": {"sum": 3, "of": "ü"}})
            assert command.line() == '{"sum": 3, "of": "ü"}'
            assert command.end() == (0, "")


def test_call_shows_the_owners_error(daemon: Daemon) -> None:
    """An error of the owner is shown with its data."""
    with daemon.connect() as owner:
        owner.result("add", {"path": "m"})
        with example("call", "m", *at(daemon)) as command:
            owner.send({"id": owner.receive(DEADLINE_S)["id"], "error": {"code": 7, "message": "hot", "data": [80]}})
            assert command.end() == (1, "refused: hot: [80]\n")


# -- the plant


def test_the_plant_is_on_a_bus_of_ones_own(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plant hangs into the bus of JET_URL, can be set, changes, and leaves with Ctrl-C."""
    url = f"jet://{daemon.listens['tcp']}"
    monkeypatch.setenv("JET_URL", url)
    with example("plant") as plant, jetbus.Peer(url) as peer:
        received = plant.lines_to("of a plant")[0]
        assert received == f"{len(peer.get_all('plant/**'))} states and 4 methods of a plant at {url}"
        assert not peer.set("plant/pump/1/setpoint_rpm", 1800).adapted
        peer.wait_for("plant/pump/1/speed_rpm value>100", timeout_s=DEADLINE_S)
        plant.process.send_signal(signal.SIGINT)
        assert plant.end() == (130, "")


def test_the_plant_ends_by_itself(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --for the plant ends by itself."""
    monkeypatch.setenv("JET_URL", f"jet://{daemon.listens['tcp']}")
    assert done("plant", "--for", "0.1")[::2] == (0, "")


def test_the_plant_needs_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a daemon the plant says so in one line and ends with 3."""
    monkeypatch.setenv("JET_URL", f"unix://@no-daemon-{os.getpid()}")
    code, out, error = done("plant")
    assert (code, out, len(error.splitlines())) == (3, "", 1)
    assert "no daemon" in error


# -- the page


def test_every_example_is_on_the_page() -> None:
    """The page of the examples has the command of each, and names no file that is not there."""
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`python examples/(\w+)\.py", page))
    assert named == {file.stem for file in EXAMPLES.glob("*.py")} - {"rawpeer"}
    assert all((EXAMPLES / target).exists() for target in re.findall(r"\]\(([^)#]+)\)", page))


def test_every_example_begins_with_its_command() -> None:
    """An example opens with what it shows, and with the command that runs it."""
    for file in EXAMPLES.glob("*.py"):
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        assert file.stem == "rawpeer" or f"python examples/{file.name}" in text, file
