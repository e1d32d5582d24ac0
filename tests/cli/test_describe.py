"""States that say what they mean, as commands show and use it: jet describe, jet ls, jet set and completion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest

from jetbus.peer import Peer
from jetbus.peer.simple import SimplePeer
from support.daemon import Daemon
from support.jet import DEADLINE_S, Jet, completed
from support.plant import url_of

Publish = Callable[..., None]
SPEED = {"unit": "rpm", "title": "Speed", "minimum": 0, "maximum": 3000, "type": "number", "colour": "red"}


@pytest.fixture
def publish(plant_daemon: Daemon) -> Iterator[Publish]:
    """Add states with all that the protocol lets an owner say of them."""
    with SimplePeer(url_of(plant_daemon), name="plc") as peer:

        def add(path: str, value: Any, **said: Any) -> None:
            peer.ask("add", {"path": path, "value": value, **said})

        yield add


def test_ls_shows_units(jet: Jet, publish: Publish) -> None:
    """A column has the units, if there are any; everything else is listed as before."""
    publish("test/speed", 800, schema=SPEED)
    publish("test/name", "P1", schema="name of the pump")
    done = jet("ls", "test", "-o", "csv")
    assert done.out.splitlines()[0] == "path,kind,access,value,unit,owner"
    assert [line.rsplit(",", 1)[0] for line in done.out.splitlines()[1:]] == [
        "test/name,state,set,P1,",
        "test/speed,state,set,800,rpm",
    ]
    assert jet("ls", "plant", "-o", "csv").out.splitlines()[0] == "path,kind,access,value,owner"


def test_describe(jet: Jet, publish: Publish) -> None:
    """A record has all that is known of a state: what the daemon knows, what the owner says, and its whole schema."""
    publish("test/speed", 800, schema=SPEED, fetchOnly=True)
    (record,) = (json.loads(line) for line in jet("describe", "test/speed").out.splitlines())
    assert record.pop("owner").startswith("plc#")
    assert record == {
        "path": "test/speed",
        "kind": "state",
        "value": 800,
        "title": "Speed",
        "unit": "rpm",
        "minimum": 0,
        "maximum": 3000,
        "access": "read-only",
        "schema": SPEED,
        "range": "0 … 3000 rpm",
    }
    lines = jet("describe", "test/speed", "-o", "table").out.splitlines()
    assert lines[0] == "test/speed"
    printed = dict(line.split(maxsplit=1) for line in lines[1:])
    assert (printed["value"], printed["range"], printed["unit"], printed["access"]) == (
        "800",
        "0 … 3000 rpm",
        "rpm",
        "read-only",
    )


@pytest.fixture
def described_method(plant_daemon: Daemon) -> Iterator[str]:
    """A method that says what it takes."""

    def run(seconds: float, mode: Literal["once", "always"] = "once", *, steps: list[int] | None = None) -> list[str]:
        """Run the pump.

        It stops by itself.
        """
        return [mode] * round(seconds) + [str(steps)]

    with Peer(url_of(plant_daemon)) as peer:
        peer.add_method("test/run", run)
        yield "test/run"


TAKES = 'seconds: number, mode: "always" | "once" = "once", steps: list of integer or null = null'


@pytest.mark.parametrize("words", [("describe",), ("help",)], ids=["jet describe", "jet help"])
def test_methods_are_explained(jet: Jet, described_method: str, words: tuple[str, ...]) -> None:
    """A method is explained by its function: what it does, the arguments that it takes, and what it returns."""
    record = json.loads(jet(*words, described_method).out)
    assert (record["title"], record["description"]) == ("Run the pump", "It stops by itself.")
    assert (record["takes"], record["returns"]) == (TAKES, "list of string")
    printed = jet(*words, described_method, "-o", "table").out
    assert f"  takes             {TAKES}\n" in printed
    assert "argument.seconds" in printed


def test_wrong_arguments_are_named(jet: Jet, described_method: str) -> None:
    """A call with an argument of another type is refused, with the name of the argument."""
    done = jet("call", described_method, "--arg", 'seconds="two"')
    assert done.code == 1
    assert "the argument seconds is of type string, not number" in done.err


def test_describe_many(jet: Jet, publish: Publish) -> None:
    """A rule describes all that match it, methods included, and a text is a description."""
    publish("test/name", "P1", schema="name of the pump")
    records = [json.loads(line) for line in jet("describe", "test/**").out.splitlines()]
    assert [(one["path"], one["description"]) for one in records] == [("test/name", "name of the pump")]
    kinds = {one["path"]: one["kind"] for one in map(json.loads, jet("describe", "plant/pump/*").out.splitlines())}
    assert (kinds["plant/pump/add"], kinds["plant/pump/speed"]) == ("method", "state")
    assert jet("describe", "plant/pump/*", "-o", "table").out.count("\n\n") == len(kinds) - 1


def test_describe_nothing(jet: Jet) -> None:
    """A path that does not exist is told with a similar one, a rule without a match as everywhere."""
    done = jet("describe", "plant/pump/sped")
    assert (done.code, done.err) == (5, "jet: there is no plant/pump/sped on the bus; did you mean plant/pump/speed?\n")
    assert jet("describe", "nothing/**").code == 5


def test_import_of_hbk(jet: Jet, publish: Publish) -> None:
    """States of a device that describes itself by introspection have a schema, without one of their own."""
    publish("/pump", {"speed": 8, "mode": 1})
    units = {"EngineeringUnits": {"DisplayName": {"text": "rpm"}}, "EuRange": {"MinValue": 0, "MaxValue": 9}}
    modes = {"_enumValues": [{"_name": "auto", "_value": 1}, {"_name": "off", "_value": 0}]}
    publish("/introspection/pump", {"speed": units, "mode": modes})
    publish("/signal", {"Value": {"DataDescriptor": {"Name": "AI0", "Unit": {"DisplayName": "V"}}}})
    found = {one["path"]: one for one in map(json.loads, jet("describe", "--import", "hbk", "/**").out.splitlines())}
    assert found["/pump"]["schema"]["properties"] == {
        "speed": {"unit": "rpm", "normal": [0, 9]},
        "mode": {"enum": [1, 0], "enumNames": ["auto", "off"]},
    }
    assert (found["/signal"]["unit"], found["/signal"]["title"]) == ("V", "AI0")
    table = jet("describe", "--import", "hbk", "/pump", "-o", "table").out
    assert 'value.speed  {"unit":"rpm","normal":[0,9]}' in table
    assert "schema" not in json.loads(jet("describe", "/pump").out)


def test_set_explains_a_refusal(jet: Jet, plant_daemon: Daemon) -> None:
    """A refused value that does not fit the schema is told with what would fit."""

    with plant_daemon.connect() as owner, ThreadPoolExecutor(1) as pool:
        owner.send(
            {"method": "add", "params": {"path": "test/level", "value": 1, "schema": {"unit": "m", "maximum": 10}}}
        )
        owner.barrier()
        said = {}
        for value in ("11", "5"):
            asked = pool.submit(jet, "set", "test/level", value)
            request = owner.receive(DEADLINE_S)
            owner.send({"id": request["id"], "error": {"code": 7, "message": "no"}})
            said[value] = asked.result()
    assert said["11"].code == said["5"].code == 1
    assert said["11"].err == "jet: test/level does not take that value: value is 11, above the maximum 10 (m)\n"
    assert said["5"].err == "jet: no\n"


def test_values_are_completed(jet: Jet, publish: Publish) -> None:
    """The tab key offers the values of an enum, and true and false of a boolean."""
    publish("test/mode", "auto", schema={"enum": ["auto", "off", 3]})
    publish("test/on", True, schema={"type": "boolean"})
    publish("test/free", 1, schema={"unit": "m"})
    assert completed(jet, "set", "test/mode", "") == ['"auto"', '"off"', "3"]
    assert completed(jet, "set", "test/on", "t") == ["true"]
    assert completed(jet, "set", "test/free", "") == []


def test_add_describes_its_state(jet: Jet) -> None:
    """The options of jet add become the schema of its state, and the daemon checks sets if it is told to."""
    said = (
        "--unit",
        "rpm",
        "--min",
        "0",
        "--max",
        "3000",
        "--normal",
        "200,",
        "--title",
        "Speed",
        "--stale",
        "5s",
        "--check",
    )
    with jet.start("add", "test/owned", "800", *said):
        assert jet("watch", "test/owned", "--count", "1").code == 0
        record = json.loads(jet("describe", "test/owned").out)
        assert record["schema"] == {
            "unit": "rpm",
            "minimum": 0,
            "maximum": 3000,
            "normal": [200, None],
            "title": "Speed",
            "stale": 5,
        }
        done = jet("set", "test/owned", "4000")
        assert (done.code, "above the maximum 3000" in done.err) == (1, True)
    assert jet("add", "test/owned", "1", "--normal", "low,high").code == 2
