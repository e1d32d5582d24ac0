"""The command on the daemons of others: what they can works, what they cannot is said."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.foreign import ForeignDaemon
from support.jet import Jet
from support.plant import VALUES, plant
from support.standin import at_websocket_path, standing_in

NAMES = {"nj1": "node-jet", "nj2": "node-jet", "nj3": "node-jet", "cjet": "cjet", "lua": "unknown"}
"""What each calls itself; lua-jet says nothing."""


@contextmanager
def node_jet(version: int) -> Iterator[str]:
    """A daemon of node-jet of a version."""
    with ForeignDaemon(version, "tcp") as daemon:
        yield daemon.url


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.interop] if name.startswith("nj") else []) for name in NAMES],
)
def daemon(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A daemon of node-jet, or a stand-in for one that cannot be had, with the plant on its bus: its name and URL."""
    name = request.param
    with node_jet(int(name[2:])) if name.startswith("nj") else standing_in(name) as url, plant(url):
        yield NAMES[name], url


@pytest.fixture
def jet(daemon: tuple[str, str], tmp_path: Path) -> Jet:
    return Jet(daemon[1], tmp_path)


def test_use(jet: Jet) -> None:
    """get, set, call, ls and watch work, with rules the daemon does not know."""
    found = [json.loads(line) for line in jet("get", "plant/pump/*", "plant/*/label").out.splitlines()]
    assert {line["path"]: line["value"] for line in found} == VALUES
    assert jet("set", "plant/pump/mode", '"manual"').code == 0
    assert jet("call", "plant/pump/add", "3", "4", "-o", "value").out == "7\n"
    assert "plant/pump/speed" in jet("ls", "plant/*/speed", "-o", "value").out
    assert jet("watch", "plant/tank/level", "--until", "value>7", "-o", "value").code == 0


def test_errors(jet: Jet, daemon: tuple[str, str]) -> None:
    """Errors have the same words and exit codes with other daemons."""
    code, _, err = jet("set", "plant/pump/spead", "1")
    assert (code, err) == (5, "jet: there is no plant/pump/spead on the bus; did you mean plant/pump/speed?\n")
    assert jet("set", "plant/pump/speed", '"fast"').code == 1
    assert jet("set", "plant/pump/running", "true").code == 1
    code, _, err = jet("peers")
    assert code == 1
    assert err.endswith(f"({daemon[0]}) does not list connections; only jetd does\n")
    for words, what in ((["at", "now"], "look back"), (["kick", "plant"], "close connections")):
        code, _, err = jet(*words)
        assert code == 1
        assert err.endswith(f"({daemon[0]}) does not {what}; only jetd does\n")


LOGINS = {
    "cjet": "login refused: wrong user or password; check --user and the password, or correct the context",
    "lua": "the daemon at {url} has no users; leave out --user",
}


@pytest.mark.parametrize("name", LOGINS)
def test_stand_ins(name: str, tmp_path: Path) -> None:
    """The one error of cjet for set and call is told apart, and missing abilities of lua-jet are reported."""
    with standing_in(name) as url, plant(url, moving=False):
        jet = Jet(url, tmp_path)
        if name == "cjet":
            assert jet("call", "plant/pump/speed").err == "jet: plant/pump/speed is a state; set or fetch it\n"
            assert jet("set", "plant/pump/add", "1").err == "jet: plant/pump/add is a method; call it\n"
            done = jet("set", "plant/pump/mode", json.dumps("x" * 600))
            assert done.code == 1
            assert "the daemon closed the connection because of a message of 6" in done.err
            with at_websocket_path(url, "/api/jet/") as ws_url:
                assert jet("call", "plant/pump/add", "3", "4", "--url", ws_url).out == "7\n"
                done = jet("get", "plant/pump/mode", "--url", f"{ws_url}/other")
                assert done.code == 3
                assert "/other was refused" in done.err
        else:
            assert jet("call", "plant/pump/speed", "3").err == "jet: plant/pump/speed is a state; set or fetch it\n"
        (jet.folder / "pass.txt").write_text("secret")
        done = jet("get", "plant/pump/mode", "--user", "ann", "--password-file", "pass.txt")
        assert (done.code, done.err) == (4, f"jet: {LOGINS[name].format(url=url)}\n")


def test_record_and_replay(jet: Jet) -> None:
    """Another daemon's bus can be recorded, and the recording played onto it again."""
    done = jet("record", "rec", "--rule", "plant/pump/*", "--for", "10ms")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["events"] >= 5  # start, three states, stop; node-jet 3 tells no methods
    done = jet("replay", "rec", "--speed", "max", "--prefix", "again")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["events"] >= 5


def test_own(jet: Jet, daemon: tuple[str, str], request: pytest.FixtureRequest) -> None:
    """A state and a method are owned on it, load is measured, and doctor says which daemon it is."""
    with jet.start("method", "lab/sum", "--exec", "echo $(($1 + $2))", "--count", "1") as serving:
        deadline = time.monotonic() + 30
        while jet("call", "lab/sum", "1", "2").code == 5:  # not all of them tell of methods
            assert time.monotonic() < deadline
        assert serving.end().code == 0
    assert json.loads(jet("bench", "set", "--count", "50").out)["count"] == 50
    code, out, _ = jet("doctor")
    assert code == 0
    assert f"{daemon[0]} " in out
    assert ("no timeouts" in out) == (request.node.callspec.params["daemon"] == "nj3")  # all others have them
