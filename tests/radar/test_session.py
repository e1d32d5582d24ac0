"""The WebSocket of a tab: what it watches, it gets, whatever the values are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

import jetbus
from jetbus.radar.app import RadarSettings, create_app
from jetbus.radar.tab import may_have_users
from jetbus.testing import running_daemon
from support.radar import serve_radar
from support.standin import standing_in


def test_bytes_reach_the_tab(radar: str, owner: jetbus.Peer) -> None:
    """A value of bytes arrives with its type, and the values beside it go on."""
    owner.add_state("picture", jetbus.Blob(b"abc", mime="image/png"))
    owner.add_state("speed", 7)
    with connect(radar.replace("http", "ws") + "ws") as tab:
        tab.send(json.dumps({"method": "watch", "params": {"paths": ["picture", "speed"]}}))
        values: dict[str, Any] = {}
        while len(values) < 2:
            message = json.loads(tab.recv(timeout=60))
            values.update({path: shown[0] for path, shown in message.get("values", {}).items()})
    assert values == {"picture": {"mime": "image/png", "base64": "YWJj"}, "speed": 7}


class Tab:
    """A tab without a browser: sends requests and waits for their answers."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._next_id = 1

    def ask(self, method: str, **params: Any) -> Any:
        """Return the answer to a request: its result, or its error."""
        number, self._next_id = self._next_id, self._next_id + 1
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        answer = self.read(lambda message: message.get("id") == number)
        return answer.get("result", answer.get("error"))

    def read(self, is_wanted: Callable[[dict[str, Any]], Any]) -> Any:
        """Return the next message of a kind."""
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if is_wanted(message):
                return message


def await_paths(tab: Tab, *paths: str) -> None:
    """Wait until the tab was told of these paths."""
    missing = set(paths)
    while missing:
        tree = tab.read(lambda message: "tree" in message)["tree"]
        missing -= {path for path, _flags in tree["add"]}


@pytest.fixture
def tab(radar: str) -> Iterator[Tab]:
    with connect(radar.replace("http", "ws") + "ws") as socket:
        yield Tab(socket)


def test_restore(tab: Tab, owner: jetbus.Peer) -> None:
    """States that differ from an instant are set back, and each refusal is named."""

    def refuse(_value: Any) -> None:
        raise jetbus.Refused("locked by the operator")

    states = {
        "a/free": owner.add_state("a/free", 1, on_set=lambda _value: None),
        "a/adapted": owner.add_state("a/adapted", 10, on_set=lambda value: value + 1),
        "a/locked": owner.add_state("a/locked", "x", on_set=refuse),
        "a/same": owner.add_state("a/same", True, on_set=lambda _value: None),
        "a/read-only": owner.add_state("a/read-only", 1),
    }
    owner.add_method("a/method", lambda: None)
    then = owner.call("$jet/journal/offsets")["now"]
    await_paths(tab, *states)
    states["a/free"].change(2)
    states["a/adapted"].change(20)
    states["a/locked"].change("y")
    states["a/read-only"].change(2)
    tab.ask("watch", paths=["a/read-only"])
    tab.read(lambda message: message.get("values", {}).get("a/read-only", [0])[0] == 2)
    assert tab.ask("compare", rule="a/**", instant=then) == {
        "differences": [
            {"path": "a/adapted", "now": 20, "then": 10},
            {"path": "a/free", "now": 2, "then": 1},
            {"path": "a/locked", "now": "y", "then": "x"},
        ],
        "total": 3,
    }
    outcomes = tab.ask("restore", rule="a/**", instant=then, paths=["a/free", "a/adapted", "a/locked", "a/same"])
    assert outcomes.pop("a/locked").startswith("refused: locked by the operator")
    assert outcomes == {"a/free": "set", "a/adapted": "adapted by its owner", "a/same": "already as it was"}
    assert {path: owner.get(path) for path in ("a/free", "a/adapted")} == {"a/free": 1, "a/adapted": 11}


def test_limits_and_mistakes_of_restore(tab: Tab) -> None:
    """Too many paths, and instants that cannot be read, are refused with a sentence."""
    assert "at most 5000" in tab.ask("restore", rule="**", instant=0, paths=["a"] * 5001)["message"]
    assert "soon" in tab.ask("compare", rule="**", instant="soon")["message"]


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a number as text": ("search", {"text": 5}, "Expected `str`, got `int` - at `$.text`"),
    "a number as rule": ("compare", {"rule": 5, "instant": 0}, "Expected `str`, got `int` - at `$.rule`"),
    "a number as paths": ("watch", {"paths": 5}, "Expected `array`, got `int` - at `$.paths`"),
    "a parameter that is missing": ("get", {}, "missing required field `path`"),
    "a parameter that is unknown": ("get", {"path": "a", "way": 1}, "unknown field `way`"),
    "a method that is unknown": ("dance", {}, "there is no method dance; there are watch, search"),
}


@pytest.mark.parametrize(("method", "params", "refusal"), WRONG.values(), ids=WRONG.keys())
def test_wrong_requests(tab: Tab, method: str, params: dict[str, Any], refusal: str) -> None:
    """A request whose parameters do not fit is answered with the reason."""
    assert refusal in tab.ask(method, **params)["message"]


def test_calls_with_any_names(tab: Tab, owner: jetbus.Peer) -> None:
    """Arguments of a method may be called like options of a call, in Radar and in Python."""
    owner.add_method("wait", lambda timeout_s, no_reply: [timeout_s, no_reply])
    await_paths(tab, "wait")
    named = {"timeout_s": 5, "no_reply": "x"}
    assert tab.ask("call", path="wait", args=named)["result"] == [5, "x"]
    with jetbus.Peer(owner.url) as other:
        assert other.call_with("wait", named) == other.call_with("wait", [5, "x"]) == [5, "x"]


USERS_SEEN: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "cjet that shows states": ({"name": "cjet", "features": {"authentication": True}}, False, False),
    "cjet that shows nothing": ({"name": "cjet", "features": {"authentication": True}}, True, True),
    "node-jet": ({"name": "node-jet", "features": {"authentication": True}}, False, True),
    "a daemon without logins": ({"name": "node-jet", "features": {"authentication": False}}, True, False),
    "a daemon that says nothing": ({}, True, False),
}


@pytest.mark.parametrize(("info", "shows_nothing", "users"), USERS_SEEN.values(), ids=USERS_SEEN.keys())
def test_daemons_of_others_with_users(info: dict[str, Any], shows_nothing: bool, users: bool) -> None:
    """A login is offered on daemons that may have users, and not on a cjet whose states everybody sees."""
    assert may_have_users(info, shows_nothing) is users


def test_no_login_on_a_cjet_without_users() -> None:
    """A tab on a cjet whose states everybody sees hears that there are no users."""
    with standing_in("cjet") as url, jetbus.Peer(url) as owner, serve_radar(url) as radar:
        owner.add_state("a", 1)
        with connect(radar.replace("http", "ws") + "ws") as socket:
            tab = Tab(socket)
            await_paths(tab, "a")
            status = tab.read(lambda message: message.get("status", {}).get("connected"))["status"]
            assert (status["daemon"]["name"], status["users"]) == ("cjet", False)


def test_a_tab_that_is_lost_while_it_is_written_to() -> None:
    """A tab whose connection is found lost by a message to it ends without an error."""

    async def run(url: str) -> None:
        lost = asyncio.Event()
        incoming = iter([{"type": "websocket.connect"}])

        async def receive() -> dict[str, Any]:
            for message in incoming:
                return message
            await lost.wait()
            return {"type": "websocket.receive", "text": "{}"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "websocket.send":
                lost.set()
                raise OSError("the connection is lost")

        scope = {"type": "websocket", "path": "/ws", "headers": [(b"host", b"127.0.0.1")], "server": ("127.0.0.1", 80)}
        async with asyncio.timeout(60):
            await create_app(RadarSettings(url=url))(scope, receive, send)

    with running_daemon() as daemon:
        asyncio.run(run(daemon.url))
