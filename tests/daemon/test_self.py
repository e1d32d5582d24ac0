"""The daemon's own figures: states under `$jet/`, /health and /metrics."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.daemon import Daemon

SAMPLE = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^{}]*\})? (-?[0-9.]+([eE][+-]?[0-9]+)?|\+Inf|NaN)")


def test_states_of_the_daemon(daemon: Daemon) -> None:
    """A rule that starts with `$` sees the daemon's own states, which nobody can set."""
    with daemon.connect() as peer:
        shown = peer.result("get", {"path": {"startsWith": "$jet/"}})
        assert all(element["path"].startswith("$jet/") for element in shown)
        methods = [element["path"] for element in shown if "value" not in element]
        assert methods == ["$jet/kick", "$jet/owners", "$jet/holdings"]
        states = [element for element in shown if "value" in element]
        assert states
        path = states[0]["path"]
        assert peer.error("set", {"path": path, "value": 1})["code"] == -32602
        assert peer.error("change", {"path": path, "value": 1})["code"] == -32602
        assert peer.error("remove", {"path": path})["code"] == -32602
        assert peer.result("get", {"path": {"equals": path}})[0]["path"] == path


def test_the_version_is_a_state(daemon: Daemon) -> None:
    """`$jet/` tells the same version as info."""
    with daemon.connect() as peer:
        version = peer.result("info", {})["version"]
        shown = peer.result("get", {"path": {"startsWith": "$jet/"}})
        states = {state["path"]: state["value"] for state in shown if "value" in state}
        assert version in states.values()


@pytest.mark.parametrize("transport", ["tcp", "unix", "ws"])
def test_states_can_be_fetched(daemon: Daemon, transport: str) -> None:
    """A fetch whose rule starts with `$` gets the daemon's states as initial events."""
    with daemon.connect(transport) as peer:
        peer.send({"id": 1, "method": "fetch", "params": {"id": 1, "path": {"startsWith": "$jet/"}}})
        assert peer.response(1) == {"id": 1, "result": True}
        first = peer.receive()["params"]
        assert first["path"].startswith("$jet/")
        assert first["event"] == "add"
        assert first["fetchOnly"] is True


def test_states_are_seen_only_by_name(daemon: Daemon) -> None:
    """No rule that does not start with `$` sees them: not everything, not a part of the name, not a legacy pattern."""
    rules: list[dict[str, Any]] = [
        {},
        {"path": {}},
        {"path": {"startsWith": ""}},
        {"path": {"contains": "jet"}},
        {"path": {"contains": "$jet"}},
        {"path": {"endsWith": "version"}},
        {"path": {"equalsNot": "x"}},
        {"value": {"isType": "string"}},
    ]
    with daemon.connect() as peer, daemon.connect("ws") as legacy:
        for rule in rules:
            assert [state["path"] for state in peer.result("get", rule) if state["path"].startswith("$")] == []
        for number, rule in enumerate(rules):
            assert peer.result("fetch", {"id": number, **rule}) is True
        assert peer.result("fetch", {"id": "sorted", "sort": {}}) is True
        assert peer.receive_all() == [{"method": "sorted", "params": {"changes": [], "n": 0}}]
        legacy.notify("fetch", ["all", "."])
        assert legacy.receive_all() == []


def test_numbers_follow_the_bus(daemon: Daemon) -> None:
    """Adding an element changes the numbers that the daemon tells about itself, at the latest with the next ones."""
    with daemon.connect() as watcher, daemon.connect() as owner:
        watcher.send({"id": 1, "method": "fetch", "params": {"id": 1, "path": {"startsWith": "$jet/"}}})
        assert watcher.response(1) == {"id": 1, "result": True}
        assert owner.result("add", {"path": "self/x", "value": 1}) is True
        while watcher.receive(within_s=30)["params"]["event"] != "change":
            pass


def test_health(daemon: Daemon) -> None:
    """/health answers 200 while the daemon works."""
    status, _, text = daemon.http("/health")
    assert status == 200
    assert text.strip()


def test_metrics_are_prometheus_text(daemon: Daemon) -> None:
    """/metrics is Prometheus text: every line a comment or a sample, every sample with its type."""
    with daemon.connect():
        status, content_type, text = daemon.http("/metrics")
    assert status == 200
    assert content_type.startswith("text/plain")
    assert text.endswith("\n")
    typed = set(re.findall(r"^# TYPE (\S+) (?:counter|gauge|histogram|summary|untyped)$", text, re.MULTILINE))
    for line in text.splitlines():
        if line and not line.startswith("#"):
            assert SAMPLE.fullmatch(line), line
            name = re.split(r"[{ ]", line)[0]
            assert name in typed or re.sub(r"_(bucket|sum|count)$", "", name) in typed, name
            assert name.startswith(("jetbus_", "process_", "python_")), name


def test_metrics_count_what_happens(daemon: Daemon) -> None:
    """The numbers in /metrics move when peers come and add."""
    before = daemon.metrics()
    with daemon.connect() as peer:
        for number in range(10):
            assert peer.result("add", {"path": f"self/{number}", "value": number}) is True
        after = daemon.metrics()
    risen = {name for name, value in after.items() if value > before.get(name, 0.0) and name.startswith("jetbus_")}
    assert len(risen) >= 2, risen


def test_other_pages(daemon: Daemon) -> None:
    """A plain HTTP request for anything else is an error of the client, not of the daemon."""
    status, _, _ = daemon.http("/nothing")
    assert 400 <= status < 500


def test_kick(daemon: Daemon) -> None:
    """The method $jet/kick closes the connection of the peer with that number, and refuses a number nobody has."""
    with daemon.connect() as victim, daemon.connect() as other:
        victim.result("config", {"name": "victim"})
        peers = other.result("get", {"path": {"startsWith": "$jet/peers/"}})
        (number,) = [int(peer["path"].rsplit("/", 1)[1]) for peer in peers if peer["value"]["name"] == "victim"]
        assert "there is no peer 0" in str(other.error("call", {"path": "$jet/kick", "args": {"peer": 0}}))
        assert other.result("call", {"path": "$jet/kick", "args": [number]}) is True
        victim.await_closed()


def test_owners(daemon: Daemon) -> None:
    """The method $jet/owners tells who owns what a rule matches, and which groups it asks for."""
    with daemon.connect() as owner, daemon.connect() as other:
        owner.result("config", {"name": "pump"})
        owner.result("add", {"path": "own/a", "value": 1})
        owner.result("add", {"path": "own/m", "access": {"callGroups": ["staff"]}})
        found = other.result("call", {"path": "$jet/owners", "args": {"rule": "own/**"}})
        assert [entry["path"] for entry in found] == ["own/a", "own/m"]
        assert all(entry["owner"].startswith("pump#") for entry in found)
        assert found[1]["access"] == {"callGroups": ["staff"]}
        assert other.result("call", {"path": "$jet/owners", "args": [{"path": {"equals": "own/a"}}]}) == found[:1]
        assert other.error("call", {"path": "$jet/owners", "args": ["value>>"]})["code"] == -32602


def test_holdings_of_a_peer(daemon: Daemon) -> None:
    """`$jet/holdings` tells which paths a peer owns and which rules it fetches, no more than it is asked for."""
    with daemon.connect() as owner, daemon.connect() as other:
        for number in range(3):
            owner.result("add", {"path": f"held/{number}", "value": 1})
        owner.result("fetch", {"id": "f", "path": {"startsWith": "a/"}})
        peers = other.result("get", {"path": {"startsWith": "$jet/peers/"}})
        (number,) = [int(peer["path"].rpartition("/")[2]) for peer in peers if peer["value"]["elements"] == 3]
        held = other.result("call", {"path": "$jet/holdings", "args": {"peer": number, "limit": 2}})
        assert held == {"owns": ["held/0", "held/1"], "total": 3, "fetches": [{"path": {"startsWith": "a/"}}]}
        assert "there is no peer 99999" in str(other.error("call", {"path": "$jet/holdings", "args": [99999]}))
        assert all(peer["value"]["conflated"] == 0 for peer in peers)
