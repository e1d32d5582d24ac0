"""The tools of jetpeer: what they take, print and end with is what the C++ programs do.

The expected texts were seen of the real ones, on cjet and on ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import jetbus
from jetbus.cli.tools import TOOLS, format_json
from support.daemon import Daemon
from support.jet import Done, Jet
from support.plant import url_of

NOBODY = "jet peerAsync could not connect to jetd (tcp: 127.0.0.1:1)!\n"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon of these tests' own."""
    with Daemon.start() as daemon:
        yield daemon
        daemon.check()


@pytest.fixture
def jet(daemon: Daemon, tmp_path: Path) -> Jet:
    return Jet(url_of(daemon), tmp_path)


@pytest.fixture
def at(daemon: Daemon) -> str:
    """The address and port of the daemon, as the tools take it."""
    return str(daemon.listens["tcp"]).replace(":", " ")


@pytest.fixture
def owner(daemon: Daemon) -> Iterator[jetbus.Peer]:
    """Something to use the tools on."""
    with jetbus.Peer(url_of(daemon)) as peer:
        peer.add_state("a/state", {"z": [], "a": {"k": "ä"}, "n": [1, 2.0]}, on_set=lambda _value: None)
        peer.add_state("a/null", None)
        peer.add_method("a/sum", lambda *numbers: sum(numbers))
        peer.add_method("a/nothing", lambda: None)
        yield peer


STATE = '{\n\t"a" : \n\t{\n\t\t"k" : "\\u00e4"\n\t},\n\t"n" : \n\t[\n\t\t1,\n\t\t2.0\n\t],\n\t"z" : []\n}'
NOT_THERE = 'code: -32602, message: Invalid params, data: {\n\t"pathNotExists" : "nope"\n}\n\n'

BAD_JSON = "Could not parse parameters for method: 'one is not JSON; for text, write '\"one\"''\n"
ASKED: dict[str, tuple[int, str, str]] = {
    "jetget {at} a/state": (0, f'path "a/state"\nvalue {STATE}\n', ""),
    "jetget {at} a/nu": (0, 'path "a/null"\nvalue null\n', ""),
    "jetget {at} nope": (0, "", ""),
    "jetget 127.0.0.1 1": (0, "", NOBODY),
    "jetset {at} a/state int 12": (0, "", ""),
    "jetset {at} a/state": (0, "syntax: jetset ADDRESS PORT PATH bool|int|double|string|json VALUE\n", ""),
    "jetset {at} a/state odd 1": (0, "syntax: jetset ADDRESS PORT PATH bool|int|double|string|json VALUE\n", ""),
    "jetset {at} a/state bool yes": (1, "", "invalid value for boolean expecting 'true'', or 'false'\n"),
    "jetset {at} a/state json {{": (1, "", "error while parsing json!\n"),
    "jetset {at} nope int 1": (0, "", NOT_THERE),
    "jetset 127.0.0.1 1 a/state int 1": (0, "", NOBODY),
    "jetexec {at} a/sum [1,2]": (0, "Result: 3\n", ""),
    "jetexec {at} a/nothing": (0, "calling without any parameter...\nResult: null\n", ""),
    "jetexec {at} a/nothing ''": (0, "calling without any parameter...\nResult: null\n", ""),
    "jetexec {at} nope [1]": (1, "", NOT_THERE),
    "jetexec {at} a/sum one": (1, "", BAD_JSON),
    "jetexec 127.0.0.1 1 nope": (1, "calling without any parameter...\n", NOBODY),
    "jetexec {at}": (0, "syntax: jetexec ADDRESS PORT (usually 11122) PATH [JSON]\n", ""),
    "jetinfo 127.0.0.1 1": (0, "", NOBODY),
    "jetcat 127.0.0.1 1": (0, "", NOBODY),
    "jetstate a bool no": (1, "", "invalid value for boolean expecting 'true'', or 'false'\n"),
}


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize("line", ASKED)
def test_tools_that_end(jet: Jet, at: str, line: str) -> None:
    """A tool takes the arguments of jetpeer's, prints what that prints and ends with its exit code."""
    assert jet.shell(f"jet {line.format(at=at)}") == ASKED[line]


VALUES = {
    "int 12": 12,
    "int -7x": -7,
    "int x": 0,
    "double 1.5e3": 1500.0,
    "double .5x": 0.5,
    "double x": 0.0,
    "bool true": True,
    "bool false": False,
    "string 12": "12",
    "json '[null]'": [None],
}


@pytest.mark.parametrize("value", VALUES)
def test_the_types_of_jetset(jet: Jet, at: str, owner: jetbus.Peer, value: str) -> None:
    """jetset reads a value as C does, for the type it is given."""
    assert jet.shell(f"jet jetset {at} a/state {value}") == Done(0, "", "")
    found = owner.get_all("a/state")["a/state"]
    assert (found, type(found)) == (VALUES[value], type(VALUES[value]))


def test_jetinfo(jet: Jet, at: str, daemon: Daemon) -> None:
    """jetinfo prints the whole response in quotes, over TCP, a Unix socket or, without arguments, JET_URL."""
    code, out, err = jet.shell(f"jetinfo {at}")
    assert (code, err) == (0, "")
    assert out.startswith('\'{\n\t"id" : 1,\n\t"result" : \n\t{\n\t\t"')
    assert json.loads(out.strip().strip("'"))["result"]["name"] == "jetbus"
    assert jet.shell("jetinfo").out == out
    name = str(daemon.listens["unix"]).removeprefix("@")
    assert jet.shell(f"jetinfo {name} 0").out == jet.shell(f"jetinfo {name}").out == out


def test_they_are_words_of_jet(jet: Jet, at: str, owner: jetbus.Peer) -> None:
    """The same tools are there as words behind jet, for machines on which jetpeer's own are installed."""
    assert owner.connected
    assert jet.shell(f"jet jetexec {at} a/sum '[1, 2]'") == Done(0, "Result: 3\n", "")


def test_tools_that_stay(jet: Jet, at: str, daemon: Daemon) -> None:
    """jetstate and jetmethod serve others, which jetcat tells of, in the words of jetpeer's."""
    host, port = at.split()
    with ExitStack() as stack:
        states = stack.enter_context(jet.start("jetcat", host, port, "theState"))
        methods = stack.enter_context(jet.start("jetcat", host, port, "theMethod"))
        client = stack.enter_context(jetbus.Peer(url_of(daemon)))
        for cat, path in ((states, "is/theState/told"), (methods, "is/theMethod/told")):
            beginning = client.add_state(path, 1)
            assert [cat.line() for _ in range(2)] == [f"state '{path}' added", "1"]
            beginning.remove()
            assert [cat.line() for _ in range(2)] == [f"state '{path}' removed", "1"]
        state = stack.enter_context(jet.start("jetstate", "theState", "json", '{"b": 1, "a": [2]}'))
        assert [state.line() for _ in range(2)] == ["adding state 'theState'...", "added state"]
        for value in (5, 5, {"x": 0.1}):
            client.set("theState", value)
        assert [state.line() for _ in range(2)] == ["set state to 5", "state stays on previous value 5"]
        assert [state.line() for _ in range(3)] == ["set state to {", '\t"x" : 0.10000000000000001', "}"]
        method = stack.enter_context(jet.start("jetmethod"))
        assert [method.line() for _ in range(2)] == ["adding method 'theMethod'...", "added method"]
        assert client.call("theMethod", 1, 2) == [1, 2]
        assert [method.line() for _ in range(4)] == ["method call with: [", "\t1,", "\t2", "]"]
        assert jet.shell(f"jetexec {at} theMethod 20") == Done(0, "Result: 20\n", "")
        assert method.line() == "method call with: 20"
        assert state.interrupt() == Done(130, "", "")
        assert method.interrupt() == Done(130, "", "")
        seen = [states.line() for _ in range(16)]
        assert seen[-5:] == ["{", '\t"x" : 0.10000000000000001', "}", "state 'theState' removed", "{"]
        assert [line for line in seen if line.startswith("state")] == [
            "state 'theState' added",
            "state 'theState' changed",
            "state 'theState' changed",
            "state 'theState' removed",
        ]
        assert [methods.line() for _ in range(2)] == ["method 'theMethod' added", "method 'theMethod' removed"]
        assert (states.interrupt().code, methods.interrupt().code) == (130, 130)


def test_what_cannot_be_owned(jet: Jet, owner: jetbus.Peer) -> None:
    """jetstate and jetmethod say why they cannot own something, and end."""
    owner.add_method("theMethod", abs)
    code, out, err = jet.shell("jetstate a/state int 1")
    assert (code, out) == (1, "")
    assert err.startswith('adding state failed!\n{\n\t"error" : \n\t{\n\t\t"code" : -32602,')
    assert jet.shell("jetmethod") == Done(1, "adding method 'theMethod'...\n", "adding method failed!\n")
    nowhere = "jet peerAsync could not connect to jetd (jet://127.0.0.1:1)!\n"
    assert jet.shell("jetmethod", JET_URL="jet://127.0.0.1:1") == Done(1, "", nowhere)


def test_the_owner_takes_too_long(jet: Jet, at: str, owner: jetbus.Peer) -> None:
    """jetset waits 2.7 s for an owner and then says so, and still ends with 0."""
    session = owner.session
    owned = session.owned.pop("a/state")  # it forgets what it owns and answers nothing
    code, out, err = jet.shell(f"jetset {at} a/state int 1")
    assert (code, out) == (0, "")
    assert err.startswith("code: -32001, message: Response Timeout, data: {")
    session.owned["a/state"] = owned


STYLES = {
    "3.0": "3.0",
    "-0.0": "-0.0",
    "1e5": "100000.0",
    "1e16": "10000000000000000.0",
    "1e100": "1e+100",
    "0.1": "0.10000000000000001",
    "123456789012345678": "123456789012345678",
    '"\\u0001 / \\u00e9\\ud83d\\ude00\\n"': '"\\u0001 / \\u00e9\\ud83d\\ude00\\n"',
    "[[1],[]]": "[\n\t[\n\t\t1\n\t],\n\t[]\n]",
    '{"b":null,"a":[{"y":{"z":true}}]}': (
        '{\n\t"a" : \n\t[\n\t\t{\n\t\t\t"y" : \n\t\t\t{\n\t\t\t\t"z" : true\n\t\t\t}\n\t\t}\n\t],\n\t"b" : null\n}'
    ),
}


@pytest.mark.parametrize("text", STYLES)
def test_json_is_laid_out_as_by_jsoncpp(text: str) -> None:
    """JSON is printed as jsoncpp prints it."""
    assert format_json(json.loads(text)) == STYLES[text]


@pytest.mark.parametrize("name", TOOLS)
def test_help(jet: Jet, name: str) -> None:
    """-h, or the wrong arguments, tell how a tool is used."""
    if name != "jetmethod":  # it has none and is not asked
        assert jet.shell(f"{name} -h").out.startswith(f"syntax: {name} ")
