"""The command on the daemons of node-jet: what they can works, what they cannot is said."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.plant import VALUES, plant
from cli.running import Jet
from peer.test_foreign import _free_port

pytestmark = pytest.mark.interop

DAEMON = Path(__file__).parent.parent / "peer" / "daemon.cjs"


@pytest.fixture(scope="module", params=[1, 2, 3], ids=["nj1", "nj2", "nj3"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A node-jet daemon of each version with the plant on its bus."""
    node, port = shutil.which("node"), _free_port()
    assert node, "there is no node on the PATH: run make test, which installs node and the clients"
    process = subprocess.Popen(
        [node, str(DAEMON), str(request.param), "tcp", str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    with plant(f"jet://127.0.0.1:{port}"):
        yield f"jet://127.0.0.1:{port}"
    assert process.poll() is None, "the node-jet daemon has ended"
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


@pytest.fixture
def jet(url: str, tmp_path: Path) -> Jet:
    return Jet(url, tmp_path)


def test_use(jet: Jet) -> None:
    """get, set, call, ls and watch work, with rules the daemon does not know."""
    found = [json.loads(line) for line in jet("get", "plant/pump/*", "plant/*/label").out.splitlines()]
    assert {line["path"]: line["value"] for line in found} == VALUES
    assert jet("set", "plant/pump/mode", '"manual"').code == 0
    assert jet("call", "plant/pump/add", "3", "4", "-o", "value").out == "7\n"
    assert "plant/pump/speed" in jet("ls", "plant/*/speed", "-o", "value").out
    assert jet("watch", "plant/tank/level", "--until", "value>7", "-o", "value").code == 0


def test_errors(jet: Jet) -> None:
    """What is wrong is told in the same words and exit codes."""
    code, _, err = jet("set", "plant/pump/spead", "1")
    assert (code, err) == (5, "jet: there is no plant/pump/spead on the bus; did you mean plant/pump/speed?\n")
    assert jet("set", "plant/pump/speed", '"fast"').code == 1
    assert jet("set", "plant/pump/running", "true").code == 1
    code, _, err = jet("peers")
    assert code == 1
    assert err.endswith("(node-jet) does not tell who is connected; only jetd does\n")
    for words, what in ((["at", "now"], "look back"), (["kick", "plant"], "close connections")):
        code, _, err = jet(*words)
        assert code == 1
        assert err.endswith(f"(node-jet) does not {what}; only jetd does\n")


def test_record_and_replay(jet: Jet) -> None:
    """What is on it is recorded, and played onto it again."""
    done = jet("record", "rec", "--rule", "plant/pump/*", "--for", "10ms")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["events"] >= 5  # start, three states, stop; node-jet 3 tells no methods
    done = jet("replay", "rec", "--speed", "max", "--prefix", "again")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["events"] >= 5


def test_own(jet: Jet) -> None:
    """A state and a method are owned on it, load is measured, and doctor says which daemon it is."""
    with jet.start("method", "lab/sum", "--exec", "echo $(($1 + $2))", "--count", "1") as serving:
        deadline = time.monotonic() + 30
        while jet("call", "lab/sum", "1", "2").code == 5:  # not all of them tell of methods
            assert time.monotonic() < deadline
        assert serving.end().code == 0
    assert json.loads(jet("bench", "set", "--count", "50").out)["count"] == 50
    code, out, _ = jet("doctor")
    assert code == 0
    assert "node-jet" in out
