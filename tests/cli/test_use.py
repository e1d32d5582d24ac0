"""get, set, call, ls and tree in a pipe: what they print and how they end."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
from typing import Any

import pytest

import jetbus
from support.daemon import Daemon
from support.jet import Jet
from support.plant import VALUES, url_of


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_get_one_value(jet: Jet) -> None:
    """In a pipe a value is one JSON object with its path."""
    assert jet("get", "plant/pump/mode") == (0, '{"path":"plant/pump/mode","value":"manual"}\n', "")


def test_get_several_rules(jet: Jet) -> None:
    """Several rules give what matches any of them, once."""
    code, out, _ = jet("get", "plant/pump/*", "plant/tank/label", "**/speed")
    assert code == 0
    assert {line["path"]: line["value"] for line in lines(out)} == VALUES
    assert len(lines(out)) == len(VALUES)


def test_get_with_a_value_test(jet: Jet) -> None:
    """A rule may test values."""
    assert lines(jet("get", "plant/** value>999").out) == [{"path": "plant/pump/speed", "value": 1000}]


FORMS = {
    "jsonl": '{"path":"plant/pump/mode","value":"manual"}\n{"path":"plant/pump/speed","value":1000}\n',
    "json": '[\n  {"path":"plant/pump/mode","value":"manual"},\n  {"path":"plant/pump/speed","value":1000}\n]\n',
    "csv": "path,value\nplant/pump/mode,manual\nplant/pump/speed,1000\n",
    "value": "manual\n1000\n",
    "table": 'path              value\nplant/pump/mode   "manual"\nplant/pump/speed  1000\n',
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(jet: Jet, form: str) -> None:
    """The same values in each form of --output, which may stand before the command, too."""
    assert jet("get", "plant/pump/mode", "plant/pump/speed", "--output", form) == (0, FORMS[form], "")


def test_options_before_the_command(jet: Jet) -> None:
    """The options that all commands share may stand before the command; the ones after it are stronger."""
    url = jet.environment["JET_URL"]
    assert jet("-o", "value", "--url", url, "get", "plant/pump/mode", JET_URL="jet://nowhere.invalid").out == "manual\n"
    assert (
        jet("-o", "csv", "--context", "none", "get", "plant/pump/mode", "--url", url, "-o", "value").out == "manual\n"
    )


def test_csv_with_commas(jet: Jet) -> None:
    """A CSV reader gets values with commas and quotes back whole."""
    out = jet("get", "plant/tank/label", "-o", "csv").out
    rows = list(csv.reader(io.StringIO(out)))
    assert rows[0] == ["path", "value"]
    assert json.loads(rows[1][1]) == VALUES["plant/tank/label"]


def test_set_and_adapted(jet: Jet) -> None:
    """A set waits for its owner; if that took another value, the value and its reason are told."""
    try:
        assert jet("set", "plant/pump/speed", "1200") == (0, '{"path":"plant/pump/speed","value":1200}\n', "")
        code, out, err = jet("set", "plant/pump/speed", "9000")
        assert (code, json.loads(out)) == (
            0,
            {"path": "plant/pump/speed", "value": 3000, "warning": "the limit is 3000 rpm"},
        )
        assert err == "jet: plant/pump/speed: the limit is 3000 rpm\n"
    finally:
        assert jet("set", "plant/pump/speed", "1000").code == 0


def test_set_prints_what_the_state_became(jet: Jet, owner: jetbus.Peer) -> None:
    """A set that its owner accepts without a change prints the value on the bus, with --all, too."""
    owner.add_state("test/same", 1, on_set=lambda _value: jetbus.UNCHANGED)
    assert jet("set", "test/same", "5") == (0, '{"path":"test/same","value":1}\n', "")
    assert jet("set", "test/same*", "5", "--all").out == '{"path":"test/same","value":1,"outcome":"set"}\n'


def test_no_reply(jet: Jet, owner: jetbus.Peer) -> None:
    """With --no-reply set and call print nothing and report no refusal, but are carried out."""
    done: list[Any] = []
    owner.add_state("test/silent", 1, on_set=done.append)
    owner.add_method("test/note", lambda *words: done.append(words))
    assert jet("set", "test/silent", "5", "--no-reply") == (0, "", "")
    assert jet("call", "test/note", "1", "--no-reply") == (0, "", "")
    assert jet("set", "test/none", "5", "--no-reply") == (0, "", "")
    assert jet("call", "test/note", "2").code == 0
    assert done == [5, (1,), (2,)]
    assert jet("set", "test/silent", "5", "--no-reply", "--all") == (
        2,
        "",
        "jet: --no-reply waits for nobody; leave out --all and --timeout\n",
    )
    assert jet("call", "test/note", "--no-reply", "--timeout", "1s") == (
        2,
        "",
        "jet: --no-reply waits for nobody; leave out --timeout\n",
    )


def test_set_by_rule(jet: Jet, owner: jetbus.Peer) -> None:
    """With --all every state that matches is set; one that refuses is named, and the others are set all the same."""
    taken: list[Any] = []
    for name in "ab":
        owner.add_state(f"test/all/{name}", 1, on_set=taken.append)
    owner.add_state("test/all/fixed", 1)
    owner.add_state("test/all/other", 5, on_set=taken.append)
    done = jet("set", "test/all/* value=1", "7", "--all")
    outcomes = {row["path"]: row["outcome"] for row in map(json.loads, done.out.splitlines())}
    assert done.code == 1
    assert outcomes == {
        "test/all/a": "set",
        "test/all/b": "set",
        "test/all/fixed": "refused: test/all/fixed is read-only: its owner does not accept sets",
    }
    assert taken == [7, 7]
    assert jet("set", "test/all/o*", "8", "--all").code == 0
    assert jet("set", "test/none/*", "8", "--all").err == (
        "jet: nothing on the bus matches test/none/*; `jet ls` lists what there is\n"
    )
    assert jet("set", "test/all/*", "8") == (
        2,
        "",
        "jet: test/all/* is a rule, and set takes one path; --all sets every state that matches it\n",
    )


VALUES_TYPED = {
    "negative": (["-5"], -5),
    "fraction": (["-1.5e3"], -1500.0),
    "text": (['"on"'], "on"),
    "bare text": (["--string", "on"], "on"),
    "number as text": (["5", "--string"], "5"),
    "object": (['{"a": [1, null]}'], {"a": [1, None]}),
}


@pytest.mark.parametrize("case", VALUES_TYPED)
def test_values(jet: Jet, owner: jetbus.Peer, case: str) -> None:
    """Values are JSON, negative numbers need no trick, and text may be bare with --string."""
    words, value = VALUES_TYPED[case]
    got: list[object] = []
    owner.add_state("test/any", None, on_set=got.append)
    assert jet("set", "test/any", *words).code == 0
    assert got == [value]


def test_value_from_stdin(jet: Jet, owner: jetbus.Peer) -> None:
    """A value that is - is read from stdin."""
    got: list[object] = []
    owner.add_state("test/any", None, on_set=got.append)
    assert jet("set", "test/any", "-", stdin='{"big": true}\n').code == 0
    assert got == [{"big": True}]


CALLS = {
    "positional": (["plant/pump/add", "3", "-4"], "-1\n"),
    "named": (["plant/pump/run", "-a", "seconds=5", "--arg", "rpm=200"], '"5 s at 200 rpm"\n'),
    "bare": (["plant/pump/run", "5", "-o", "value"], "5 s at 1000 rpm\n"),
    "text": (["plant/pump/add", "a", "b", "--string", "-o", "csv"], "result\nab\n"),
}


TABLE = {"columns": ["path", "n"], "rows": [["a", 1], ["b", None]], "more": True}
CALLED = {
    "table": (TABLE, "path  n\na     1\nb\n", "jet: the result was cut, there are more rows; narrow the query\n"),
    "csv": (TABLE, "path,n\na,1\nb,\n", "jet: the result was cut, there are more rows; narrow the query\n"),
    "jsonl": (TABLE, '{"columns":["path","n"],"rows":[["a",1],["b",null]],"more":true}\n', ""),
    "csv of no table": ({"columns": ["a", "a"], "rows": []}, 'result\n"{""columns"":[""a"",""a""],""rows"":[]}"\n', ""),
    "csv of uneven rows": ({"columns": ["a"], "rows": [[]]}, 'result\n"{""columns"":[""a""],""rows"":[[]]}"\n', ""),
}


@pytest.mark.parametrize("case", CALLED)
def test_called_tables(jet: Jet, owner: jetbus.Peer, case: str) -> None:
    """A result of columns and rows is a table for people and spreadsheets, and as it is for programs."""
    result, out, err = CALLED[case]
    owner.add_method("test/ask", lambda: result)
    assert jet("call", "test/ask", "-o", case.split()[0]) == (0, out, err)


@pytest.mark.parametrize("case", CALLS)
def test_call(jet: Jet, case: str) -> None:
    """A call prints what the method returned."""
    words, out = CALLS[case]
    assert jet("call", *words) == (0, out, "")


def test_ls(jet: Jet) -> None:
    """ls tells of states and methods what can be done with them, sorted by path, and stays below its prefix."""
    code, out, _ = jet("ls", "plant/pump")
    assert code == 0
    assert all(str(line["owner"]).startswith("plant#") for line in lines(out))
    assert [line["owner"] for line in lines(jet("ls", "$jet/pid").out)] == ["jetd"]
    assert [(line["path"], line["kind"], line["access"]) for line in lines(out)] == [
        ("plant/pump/add", "method", "call"),
        ("plant/pump/mode", "state", "set"),
        ("plant/pump/run", "method", "call"),
        ("plant/pump/running", "state", "read-only"),
        ("plant/pump/speed", "state", "set"),
    ]


def test_tree(jet: Jet) -> None:
    """tree draws nodes, states with values and methods with brackets; a depth cuts it."""
    (number,) = (line["number"] for line in lines(jet("peers").out) if line["name"] == "plant")
    assert jet("tree", "plant/pump", "-o", "table").out == (
        f'└─ plant  [plant#{number}]\n   └─ pump\n      ├─ add()\n      ├─ mode = "manual"\n      ├─ run()\n'
        "      ├─ running = false\n      └─ speed = 1000\n"
    )
    assert jet("tree", "plant", "--depth", "2", "-o", "table").out == (
        f"└─ plant  [plant#{number}]\n   ├─ pump\n   └─ tank\n"
    )


def test_tree_of_two_owners(jet: Jet, plant_daemon: Daemon) -> None:
    """If two peers own elements below a node, each owner is shown where its part begins."""
    with jetbus.Peer(url_of(plant_daemon), name="x") as x, jetbus.Peer(url_of(plant_daemon), name="y") as y:
        x.add_state("test/a/b", 1)
        x.add_state("test/a/c", 2)
        y.add_state("test/d", 3)
        drawn = re.sub(r"#\d+", "", jet("tree", "test", "-o", "table").out)
    assert drawn == "└─ test\n   ├─ a  [x]\n   │  ├─ b = 1\n   │  └─ c = 2\n   └─ d = 3  [y]\n"


def test_tree_of_nodes_named_value(jet: Jet, owner: jetbus.Peer) -> None:
    """Nodes may have any name in the JSON of a tree."""
    owner.add_state("test/value/method", 1)
    (root,) = json.loads(re.sub(r',"owner":"[^"]*"', "", jet("tree", "test", "-o", "json").out))
    assert root == {
        "name": "test",
        "path": "test",
        "kind": "node",
        "below": [
            {
                "name": "value",
                "path": "test/value",
                "kind": "node",
                "below": [
                    {"name": "method", "path": "test/value/method", "kind": "state", "access": "read-only", "value": 1}
                ],
            }
        ],
    }


def test_peers(jet: Jet) -> None:
    """peers lists who is connected, the command itself included."""
    named = {line["name"]: line for line in lines(jet("peers").out)}
    assert named["plant"]["elements"] == 7
    assert named["jet"]["transport"] == "tcp"


def test_kick(jet: Jet, plant_daemon: Daemon) -> None:
    """kick closes the connection of a peer by its number, its name or both, and all of a name only with --all."""
    url = url_of(plant_daemon)
    words = ("77", "twin", "twin#{number}", "#{number}")
    for word in words:
        name = "77" if word == "77" else "twin"
        lost = threading.Event()
        with jetbus.Peer(url, name=name, reconnect=False, on_loss=lost.set):
            (number,) = (line["number"] for line in lines(jet("peers").out) if line["name"] == name)
            (printed,) = lines(jet("kick", word.format(number=number)).out)
            assert (printed["number"], printed["name"], printed["done"]) == (number, name, "closed")
            assert lost.wait(30)
    with jetbus.Peer(url, name="twin", reconnect=False), jetbus.Peer(url, name="twin", reconnect=False):
        code, out, err = jet("kick", "twin")
        assert (code, out) == (2, "")
        assert err.startswith("jet: 2 peers are named twin (numbers ")
        assert len(lines(jet("kick", "twin", "--all").out)) == 2
        assert jet("kick", "twin").code == 5


URLS = {
    "ws": "ws://{ws}",
    "unix": "unix://{unix}",
    "binary": "jetb://{binary}",
    "binary by WebSocket": "jetb+ws://{ws}",
    "binary by Unix socket": "jetb+unix://{binary_unix}",
}


@pytest.mark.parametrize("case", URLS)
def test_transports(jet: Jet, plant_daemon: Daemon, case: str) -> None:
    """A command that asks once works by each transport and in both protocols."""
    url = URLS[case].format(**plant_daemon.listens)
    assert jet("get", "plant/pump/mode", "--url", url, "-o", "value") == (0, "manual\n", "")
    assert jet("set", "plant/pump/spee", "1", "--url", url).err.endswith("did you mean plant/pump/speed?\n")


def test_version(jet: Jet) -> None:
    """version tells of this program and of the daemon, and works without one."""
    assert jet("--version") == (0, f"jet {jetbus.__version__}\n", "")
    printed = json.loads(jet("version").out)
    assert (printed["jet"], printed["daemon"], printed["daemon_version"]) == (
        jetbus.__version__,
        "jetbus",
        jetbus.__version__,
    )
    code, out, _ = jet("version", "--url", "unix://@nobody-is-there")
    assert code == 0
    assert "no daemon at" in json.loads(out)["problem"]
