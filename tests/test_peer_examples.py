"""The examples with peers, each as the command a newcomer types, against a real daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import jetbus
from jetbus.testing import RunningDaemon, running_daemon
from support.program import DEADLINE_S, example


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningDaemon]:
    """A daemon that peers without a URL connect to."""
    with running_daemon() as running:
        monkeypatch.setenv("JET_URL", running.url)
        yield running


OWNERS = [("thermostat",), ("pump",), ("chat", "ann"), ("todo", "serve")]
CLIENTS = [("todo", "watch"), ("todo", "add", "x")]


@pytest.mark.parametrize("command", OWNERS, ids=" ".join)
def test_examples_wait_for_their_daemon(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that starts before its daemon goes on as soon as there is one."""
    name = f"late-daemon-{os.getpid()}"
    monkeypatch.setenv("JET_URL", f"unix://@{name}")
    with example(*command) as running, running_daemon(unix=f"@{name}"):
        assert running.line()
        running.interrupt()


@pytest.mark.parametrize("command", CLIENTS, ids=" ".join)
def test_examples_need_a_daemon(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a daemon an example says so in one line and ends with exit code 3."""
    monkeypatch.setenv("JET_URL", f"unix://@no-daemon-{os.getpid()}")
    with example(*command) as running:
        code, error = running.end()
    assert code == 3
    assert len(error.splitlines()) == 1
    assert "no daemon" in error


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("command", OWNERS, ids=" ".join)
def test_examples_end_on_ctrl_c(command: tuple[str, ...]) -> None:
    """Ctrl-C ends an example without a word."""
    with example(*command) as running:
        assert running.line()
        assert running.interrupt() == (130, "")


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("command", [("thermostat",), ("pump",), ("todo", "serve")], ids=" ".join)
def test_examples_end_by_themselves(command: tuple[str, ...]) -> None:
    """With --for an example ends by itself."""
    with example(*command, "--for", "0.1") as running:
        assert running.end() == (0, "")


@pytest.mark.usefixtures("daemon")
def test_thermostat() -> None:
    """The thermostat heats to its setpoint, takes another one within limits and refuses the rest."""
    with example("thermostat"), jetbus.Peer() as peer:
        peer.wait_for("thermostat/heating value=true", timeout_s=DEADLINE_S)
        peer.wait_for("thermostat/temperature value>16", timeout_s=DEADLINE_S)
        peer.set("thermostat/setpoint", 10)
        peer.wait_for("thermostat/heating value=false", timeout_s=DEADLINE_S)
        with pytest.raises(jetbus.JetError) as refused:
            peer.set("thermostat/setpoint", 100)
        assert "between 5 and 30" in str(refused.value.data)
        with pytest.raises(jetbus.JetError):
            peer.set("thermostat/setpoint", "warm")
        assert peer.get_all("thermostat/setpoint") == {"thermostat/setpoint": 10}


@pytest.mark.usefixtures("daemon")
def test_pump() -> None:
    """The pump adapts a speed beyond its limit, refuses nonsense and is started and stopped by methods."""
    with example("pump"), jetbus.Peer() as peer:
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
        assert peer.get_all("pump/**") == {"pump/running": True, "pump/speed_rpm": 3000}
        peer.call("pump/stop")
        assert peer.get_all("pump/running") == {"pump/running": False}
        described = peer.fetch("pump/speed_rpm", schema=True).next(DEADLINE_S).schema
        assert (described.type, described.unit, described.normal) == (("number",), "rpm", (0, 3000))


@pytest.mark.usefixtures("daemon")
def test_chat() -> None:
    """Those who chat see who comes, what they write, line by line, and who goes."""
    with example("chat", "ann") as ann:
        assert ann.line() == "* you are ann; write, and end with Ctrl-D"
        with example("chat", "bob") as bob:
            assert ann.line() == "* bob is here"
            assert {bob.line(), bob.line()} == {"* ann is here", "* you are bob; write, and end with Ctrl-D"}
            for line in ("hello", "ann", "ä"):
                bob.say(line)
            assert [ann.line() for _ in range(3)] == ["bob: hello", "bob: ann", "bob: ä"]
            ann.say("hello bob")
            assert bob.line() == "ann: hello bob"
            with example("chat", "ann") as other:
                assert other.end() == (1, "there is a ann already; take another name\n")
            assert bob.end() == (0, "")
        assert ann.line() == "* bob has left"
        assert ann.end() == (0, "")


def done(*words: str) -> tuple[str | None, int, str]:
    with example("todo", *words) as command:
        return (command.line(), *command.end())


def test_todo(daemon: RunningDaemon) -> None:
    """Items are added, ticked off and removed; who watches sees the list in order of title."""
    with example("todo", "serve") as service, example("todo", "watch") as watch:
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
