"""The examples, each as the command a newcomer types, against a real daemon."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from support.daemon import Daemon
from support.wire import TcpWire

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
DEADLINE_S = 30.0


class Command:
    """A running example: its lines as they come, its end."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def line(self) -> str | None:
        """The next line, None at the end."""
        return self._lines.get(timeout=DEADLINE_S)

    def lines_to(self, pattern: str) -> list[str]:
        """The lines up to the first in which the pattern is found."""
        lines = []
        while (line := self.line()) is not None:
            lines.append(line)
            if re.search(pattern, line):
                return lines
        raise AssertionError(f"no {pattern!r} in {lines}")

    def end(self) -> tuple[int, str]:
        """Wait for the end: exit code and what went to stderr."""
        assert self.process.stderr is not None
        error = self.process.stderr.read()
        assert "Traceback" not in error, error
        return self.process.wait(DEADLINE_S), error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(DEADLINE_S)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def example(name: str, *words: str) -> Command:
    return Command(str(EXAMPLES / f"{name}.py"), *words)


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


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


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
    """When the daemon stops, watch says so in one sentence and ends with 3."""
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
    """What the daemon refuses is said in a sentence, and the exit code is 1."""
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


class Running:
    """A plant that runs at free ports."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.told = command.lines_to("Ctrl-C ends the demo")
        found = re.search(r"jetd at (\S+)\. In", self.told[0])
        assert found, self.told
        self.tcp = found[1]

    def do(self, name: str, *words: str) -> tuple[int, str]:
        """Run another example against it: exit code and whichever of stdout and stderr has something."""
        code, out, error = done(name, *words, "--tcp", self.tcp)
        return code, out or error

    def value(self, path: str) -> Any:
        code, out = self.do("watch", path, "--count", "1")
        assert code == 0
        return json.loads(out.split(maxsplit=2)[2])


@contextlib.contextmanager
def running(*words: str) -> Iterator[Running]:
    with example("plant", "--tcp", "127.0.0.1:0", "--ws", "127.0.0.1:0", *words) as command:
        yield Running(command)


@pytest.fixture(scope="module")
def plant() -> Iterator[Running]:
    with running() as plant:
        yield plant


def test_plant_says_what_to_try(plant: Running) -> None:
    """The plant says in at most eight lines what to try, and each of these commands works."""
    assert len(plant.told) <= 8
    commands = [shlex.split(line, comments=True) for line in plant.told if line.startswith("  ")]
    assert [Path(words[-2]).name for words in commands if words[0] == "curl"] == ["curl"]
    for words in commands:
        if words[0] == "curl":
            words.insert(1, "--silent")
        if "watch" in words[1]:
            words += ["--count", "7"]
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert (ran.returncode, ran.stderr) == (0, ""), words
        assert ran.stdout


def test_plant_has_a_few_dozen_living_states(plant: Running) -> None:
    """The plant has dozens of states, and they change."""
    states = int(plant.told[0].split()[0])
    assert states >= 30
    with example("watch", "plant/", "--tcp", plant.tcp) as watch:
        shown = watch.lines_to("^change")
    assert len([line for line in shown if line.startswith("add")]) == states + 3


@pytest.mark.parametrize(
    ("path", "asked", "said", "taken"),
    [
        ("plant/pump/1/setpoint_rpm", "1500", "done", 1500),
        ("plant/pump/1/setpoint_rpm", "15000", "done, but adapted: 3000 rpm is the limit", 3000),
        ("plant/heater/setpoint_c", "-3", "done, but adapted: 10 °C is the limit", 10),
        ("plant/valve/opening_percent", "9" * 1500, "done, but adapted: 100 % is the limit", 100),
        ("plant/valve/opening_percent", "1e999", "done, but adapted: 100 % is the limit", 100),
    ],
    ids=["taken", "too-high", "too-low", "very-long", "beyond-float"],
)
def test_plant_takes_settings_within_limits(plant: Running, path: str, asked: str, said: str, taken: float) -> None:
    """A setting beyond its limit is adapted, the setter is warned, and the state shows what was taken."""
    if asked == "1e999":  # Python cannot write what it reads here, so the frame is put together by hand
        host, port = plant.tcp.rsplit(":", 1)
        with TcpWire((host, int(port))) as wire:
            wire.send_text(f'{{"id":1,"method":"set","params":{{"path":"{path}","value":{asked}}}}}')
            assert wire.receive()["result"]["warning"]["message"] == said.split(": ")[1]
    else:
        assert plant.do("set", path, asked) == (0, said)
    assert plant.value(path) == taken


@pytest.mark.parametrize("asked", ['"fast"', "true", "null", "[1]", "{}"])
def test_plant_refuses_nonsense(plant: Running, asked: str) -> None:
    """A setting that is no number is refused, and the state stays as it was."""
    before = plant.value("plant/pump/3/setpoint_rpm")
    code, said = plant.do("set", "plant/pump/3/setpoint_rpm", asked)
    assert (code, said) == (1, "refused: plant/pump/3/setpoint_rpm takes a number from 0 to 3000 rpm")
    assert plant.value("plant/pump/3/setpoint_rpm") == before


def test_plant_starts_and_stops(plant: Running) -> None:
    """Pumps are stopped and started all together or by number."""
    assert plant.do("call", "plant/stop") == (0, '{"running": []}')
    assert plant.value("plant/pump/2/running") is False
    assert plant.do("call", "plant/start", '{"pumps": [1, 2]}') == (0, '{"running": [1, 2]}')
    assert plant.do("call", "plant/stop", "[1]") == (0, '{"running": [2]}')
    assert plant.do("call", "plant/start") == (0, '{"running": [1, 2, 3]}')
    for nonsense in ("[7]", '{"pump": [1]}', "[[1]]", "5", '"all"'):
        code, said = plant.do("call", "plant/stop", nonsense)
        assert code == 1
        assert "refused: give pumps as a list" in said


def test_plant_resets_counters(plant: Running) -> None:
    """Counters are reset all together or by name, and what they had reached is answered."""
    code, said = plant.do("call", "plant/counter/reset", '["delivered_l"]')
    assert (code, list(json.loads(said))) == (0, ["delivered_l"])
    code, said = plant.do("call", "plant/counter/reset")
    assert (code, sorted(json.loads(said))) == (0, ["alarms_raised", "delivered_l", "energy_kwh"])
    for nonsense in ('["x"]', "[[1]]", '{"delivered_l": 1}'):
        assert plant.do("call", "plant/counter/reset", nonsense)[0] == 1


def test_plant_ends_by_itself() -> None:
    """With --for the plant ends with one line of summary, and its daemon with it."""
    with running("--for", "1") as plant:
        summary = plant.command.lines_to("answered")[-1]
        assert re.fullmatch(
            r"\d+ states and 3 methods lived \d+\.\d s: \d+ changes told, 0 sets and 0 calls answered", summary
        )
        assert plant.command.end() == (0, "")
        host, port = plant.tcp.rsplit(":", 1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_plant_leaves_nothing_behind(number: signal.Signals) -> None:
    """Ctrl-C, a polite kill and a closed terminal end the plant and its daemon."""
    with running() as plant:
        pid = plant.value("$jet/pid")
        plant.command.process.send_signal(number)
        assert plant.command.end() == (0, "")
        assert not is_alive(pid)


def test_plant_says_that_its_daemon_is_gone() -> None:
    """When its daemon is killed, the plant says so in one sentence and ends with 3."""
    with running() as plant:
        os.kill(plant.value("$jet/pid"), signal.SIGKILL)
        code, error = plant.command.end()
    assert code == 3
    assert len(error.splitlines()) == 1
    assert "has closed the connection" in error


def test_plant_takes_other_ports_when_the_usual_ones_are_taken() -> None:
    """Where the usual ports are taken, the plant says so and takes free ones."""
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # somebody else has it: just as well
            taken.bind(("127.0.0.1", 11122))
            taken.listen()
        with example("plant", "--for", "0.3") as command:
            told = command.lines_to("Ctrl-C ends the demo")
            code, error = command.end()
    assert code == 0
    assert "localhost:11122: it is in use" in error
    assert "takes free ports instead" in error
    assert ":11122" not in "".join(told)
    assert all(" --tcp 127.0.0.1:" in line for line in told if ".py" in line)


def test_plant_insists_on_an_address_it_was_given(daemon: Daemon) -> None:
    """An address that was asked for and is taken is an error."""
    code, out, error = done("plant", "--tcp", daemon.listens["tcp"], "--for", "1")
    assert (code, out) == (3, "")
    assert "it is in use" in error


def test_the_fault_comes_and_goes() -> None:
    """The second pump's bearing fails now and then: it shakes, heats up and pumps less, and an alarm is raised."""
    plant = runpy.run_path(str(EXAMPLES / "physics.py"), run_name="physics")["Plant"]()
    seen: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for _ in range(50 * 5):
        plant.step(0.2)
        shown = plant.values()
        seen["pump 2: bearing" in shown["plant/alarms"]].append(shown)
    good, bad = seen[False][40], seen[True][-1]
    for name in ("vibration_mm_s", "bearing_c", "current_a"):
        assert bad[f"plant/pump/2/{name}"] > good[f"plant/pump/2/{name}"]
    assert bad["plant/tank/inflow_l_min"] < good["plant/tank/inflow_l_min"]
    assert (bad["plant/pump/2/fault"], good["plant/pump/2/fault"]) == ("bearing", None)
    assert shown["plant/counter/alarms_raised"] == 2
    assert 0 < shown["plant/tank/level_l"] < 2000
