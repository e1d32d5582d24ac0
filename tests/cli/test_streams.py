"""Commands that stay on the bus: what they tell, what ends them, and what they survive."""

from __future__ import annotations

import json
import signal
import time

import pytest

import jetbus
from jetbus.cli.streams import measure_bytes
from jetbus.peer import Event
from support.daemon import Daemon
from support.jet import DAEMON, DEADLINE_S, Jet
from support.plant import url_of


def test_watch_tells_what_happens(jet: Jet, owner: jetbus.Peer) -> None:
    """watch starts with what is there, then tells changes, additions and removals, each at once."""
    state = owner.add_state("test/a", 1)
    with jet.start("watch", "test/**") as watching:
        assert brief(watching.line()) == ("add", "test/a", 1)
        state.change(2)
        assert brief(watching.line()) == ("change", "test/a", 2)
        other = owner.add_method("test/b", lambda: None)
        assert brief(watching.line()) == ("add", "test/b", None)
        other.remove()
        assert brief(watching.line()) == ("remove", "test/b", None)
        state.remove()
        assert brief(watching.line()) == ("remove", "test/a", 2)
        assert watching.interrupt() == (130, "", "")


def brief(line: str) -> tuple[str, str, object]:
    printed = json.loads(line)
    assert printed["ts"].endswith("Z")
    return printed["event"], printed["path"], printed.get("value")


def test_watch_several_rules(jet: Jet, owner: jetbus.Peer) -> None:
    """An event that two rules match is printed once."""
    state = owner.add_state("test/a", 1)
    with jet.start("watch", "test/**", "**/a value>0", "plant/pump/mode") as watching:
        seen = {brief(watching.line()), brief(watching.line())}
        assert seen == {("add", "test/a", 1), ("add", "plant/pump/mode", "manual")}
        state.change(5)
        state.change(6)
        assert [brief(watching.line())[2], brief(watching.line())[2]] == [5, 6]
        watching.interrupt()


def test_watch_new_only(jet: Jet, owner: jetbus.Peer) -> None:
    """With --new what is there at the start is left out."""
    state = owner.add_state("test/a", 0)
    with jet.start("watch", "test/**", "plant/pump/**", "--new", "--count", "1") as watching:
        deadline = time.monotonic() + DEADLINE_S
        while watching.process.poll() is None:
            assert time.monotonic() < deadline
            state.change(1)
            time.sleep(0.02)
        code, out, _ = watching.end()
    assert (code, brief(out)) == (0, ("change", "test/a", 1))


def test_bytes(jet: Jet, owner: jetbus.Peer) -> None:
    """A value that is bytes is shown as what stands for it in JSON, by get and by watch."""
    printed = {"mime": "text/plain", "base64": "aGVsbG8="}
    owner.add_state("test/bytes", printed)
    for words in (["get", "test/bytes"], ["watch", "test/bytes", "-n", "1"]):
        assert json.loads(jet(*words).out)["value"] == printed


ENDINGS = {
    "count": (["--count", "3"], 0, ""),
    "for": (["--for", "100ms"], 0, ""),
    "until": (["--until", "value=7"], 0, ""),
    "until, a path": (["--until", "**/level value>8"], 0, ""),
    "until not met": (
        ["--until", "value>99", "--for", "200ms"],
        7,
        "jet: the condition value>99 was not met within 0.2 s\n",
    ),
    "until not met in time for count": (
        ["--until", "value>99", "--count", "2"],
        7,
        "jet: the condition value>99 was not met\n",
    ),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_endings(jet: Jet, case: str) -> None:
    """A stream ends after a count, a time or when a rule holds; exit code 7 tells that it did not."""
    words, code, err = ENDINGS[case]
    done = jet("watch", "plant/tank/level", *words, "-o", "value")
    assert (done.code, done.err) == (code, err)
    values = list(map(int, done.out.split()))
    assert values
    if case == "count":
        assert len(values) == 3
    if case == "until":
        assert values.index(7) == len(values) - 1


def test_count_not_reached(jet: Jet) -> None:
    """A count that is not reached in time is a condition that is not met."""
    code, out, err = jet("watch", "plant/pump/mode", "--count", "2", "--for", "300ms", "-o", "value")
    assert (code, out, err) == (7, "manual\n", "jet: only 1 of 2 events arrived within 0.3 s\n")


STAYING = {
    "watch": ["watch", "plant/tank/level"],
    "hz": ["hz", "plant/tank/level", "--every", "50ms"],
    "bw": ["bw", "--every", "50ms"],
    "top": ["top", "--every", "50ms"],
    "json": ["watch", "plant/tank/level", "-o", "json"],
}


@pytest.mark.parametrize("case", STAYING)
def test_ctrl_c(jet: Jet, case: str) -> None:
    """Ctrl-C ends a stream at once, without a word and with exit code 130; JSON is complete."""
    with jet.start(*STAYING[case]) as staying:
        first = staying.line()
        code, rest, err = staying.interrupt()
    assert (code, err) == (130, "")
    if case == "json":
        assert len(json.loads(first + "\n" + rest)) > 0


@pytest.mark.parametrize("what", [["add", "test/own", "1"], ["method", "test/own", "--exec", "true"]], ids=" ".join)
def test_owners_end_on_ctrl_c(jet: Jet, owner: jetbus.Peer, what: list[str]) -> None:
    """Ctrl-C takes what a command owns off the bus."""
    with jet.start(*what) as owning:
        owner.wait_for("test/own", timeout_s=30)
        assert owning.interrupt() == (130, "", "")
    assert owner.get_all("test/**") == {}


SIZES = {
    "number": (Event("change", "plant", 12.5), 9),
    "text": (Event("change", "tür", "ä"), 8),
    "method": (Event("add", "plant/run", None, is_method=True), 9),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes(case: str) -> None:
    """top and bw count the bytes of path and value, as UTF-8; a method has no value."""
    event, size = SIZES[case]
    assert measure_bytes(event) == size


PIPES = {
    "one line": "jet watch plant/tank/level | head -1",
    "nothing more happens": "jet watch plant/pump/mode | head -1",
    "a list": "jet get '**' '$jet/**' | head -1",
    "a table": "jet top --every 50ms -o csv | head -1",
}


@pytest.mark.parametrize("case", PIPES)
def test_a_pipe_closed_early(jet: Jet, case: str) -> None:
    """A reader that has seen enough ends the command, without a traceback, even if nothing more happens."""
    code, out, err = jet.shell(PIPES[case])
    assert (code, len(out.splitlines()), err) == (0, 1, "")


def test_a_lost_daemon(jet: Jet) -> None:
    """A watch survives its daemon: it says that it waits, and goes on with the next one."""
    first = Daemon.start()
    port = first.listens["tcp"]
    with jet.start("watch", "test/**", "--url", f"jet://{port}") as watching:
        with jetbus.Peer(url_of(first)) as owner:
            owner.add_state("test/a", 1)
            assert brief(watching.line()) == ("add", "test/a", 1)
        assert brief(watching.line()) == ("remove", "test/a", 1)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        assert watching.complaint() == f"jet: lost the connection to jet://{port}; retrying until Ctrl-C"
        with Daemon.start("--tcp", port) as second, jetbus.Peer(url_of(second)) as owner:
            assert watching.complaint() == f"jet: reconnected to jet://{port}"
            owner.add_state("test/b", 2)
            assert brief(watching.line()) == ("add", "test/b", 2)
            assert watching.interrupt() == (130, "", "")
    first.close_log()
    assert first.process.stdout is not None
    first.process.stdout.close()


def test_rates(jet: Jet, owner: jetbus.Peer) -> None:
    """hz counts events and the time between them, bw their bytes, top the busiest paths first."""
    (hz,) = map(json.loads, jet("hz", "plant/tank/level", "--count", "1").out.splitlines())
    assert hz["events"] > 0
    assert hz["min_ms"] <= hz["mean_ms"] <= hz["max_ms"]
    (bw,) = map(json.loads, jet("bw", "plant/tank/level", "--count", "1").out.splitlines())
    assert bw["mean_bytes"] == len("plant/tank/level") + 1
    owner.add_state("test/still", 1)
    top = [json.loads(line)["path"] for line in jet("top", "--count", "1", "--rows", "5").out.splitlines()]
    assert top == ["plant/tank/level"]


def test_rates_until_the_time_is_up(jet: Jet) -> None:
    """A measurement that --for ends is printed if it is the first one: nobody waits for nothing."""
    assert jet("top", "--for", "500ms", "--every", "10s").out
    for options in (["--for", "100ms"], ["--for", "1s"]):
        lines = jet("hz", "plant/tank/level", *options).out.splitlines()
        assert lines
        assert set(json.loads(lines[0])) >= {"ts", "events", "per_s"}


def test_add_takes_sets(jet: Jet, owner: jetbus.Peer) -> None:
    """A state that is owned from the shell takes sets, prints them and answers them."""
    with jet.start("add", "test/lamp", '"off"', "--count", "2") as owning:
        assert owner.wait_for("test/lamp", timeout_s=30).value == "off"
        owner.set("test/lamp", "on")
        assert brief(owning.line()) == ("set", "test/lamp", "on")
        assert owner.get_all("test/lamp") == {"test/lamp": "on"}
        owner.set("test/lamp", "off")
        assert owning.end().code == 0


def test_add_read_only(jet: Jet, owner: jetbus.Peer) -> None:
    """A read-only state takes no set, and access groups are passed on."""
    with jet.start("add", "test/lamp", "1", "--read-only", "--access", '{"setGroups": ["staff"]}') as owning:
        owner.wait_for("test/lamp", timeout_s=30)
        with pytest.raises((jetbus.ReadOnly, jetbus.NotAllowed)):
            owner.set("test/lamp", 2)
        owning.interrupt()


def test_add_from_stdin(jet: Jet, owner: jetbus.Peer) -> None:
    """Each line of stdin is a new value; the end of stdin is the end of the state."""
    with owner.fetch("test/count", policy="every") as fetch, jet.start("add", "test/count", "-") as owning:
        assert owning.process.stdin is not None
        for line in (b"1\n", b'{"a": 2}\n', b"3\n"):
            owning.process.stdin.write(line)
            owning.process.stdin.flush()
        events = [fetch.next(timeout_s=30) for _ in range(3)]
        assert [event.value for event in events] == [1, {"a": 2}, 3]
        assert owning.end().code == 0
        assert fetch.next(timeout_s=30).kind == "remove"


def test_add_from_bad_stdin(jet: Jet) -> None:
    """A line that is no JSON ends it with exit code 2; no line at all is an error as well."""
    assert jet("add", "test/count", "-", stdin="1\noops\n").code == 2
    assert jet("add", "test/count", "-", stdin="").code == 1


def test_method(jet: Jet, owner: jetbus.Peer) -> None:
    """A program gets the arguments as words and as JSON on stdin; what it prints is the result."""
    with jet.start("method", "test/sum", "--exec", 'read json; echo "[$(($1 + $2)), $json]"') as serving:
        owner.wait_for("test/sum", timeout_s=30)
        assert owner.call("test/sum", 3, 4) == [7, [3, 4]]
        printed = json.loads(serving.line())
        assert (printed["path"], printed["args"], printed["result"]) == ("test/sum", [3, 4], [7, [3, 4]])
        serving.interrupt()


METHODS_REFUSED = {
    "exit code": ("echo no paper >&2; exit 3", "no paper"),
    "no JSON": ("echo hello", "not JSON; serve the method with --string"),
    "too slow": ("sleep 60", "took longer than 0.3 s"),
    "too much": ("yes", "printed more than 1048576 bytes"),
}


@pytest.mark.parametrize("case", METHODS_REFUSED)
def test_method_refuses(jet: Jet, owner: jetbus.Peer, case: str) -> None:
    """A program that fails, prints no JSON or takes too long refuses the call, and the caller is told why."""
    program, why = METHODS_REFUSED[case]
    limit = ["--timeout", "300ms"] if case == "too slow" else ["--timeout", "30s"]
    with jet.start("method", "test/bad", "--exec", program, *limit, "--count", "1") as serving:
        owner.wait_for("test/bad", timeout_s=30)
        with pytest.raises(jetbus.JetError) as refused:
            owner.call("test/bad", timeout_s=20)
        done = serving.end()
    assert case == "too slow" or why in str(refused.value)
    assert done.code == 0
    assert why in json.loads(done.out)["problem"]


def test_watch_by_websocket(jet: Jet, plant_daemon: Daemon) -> None:
    """A stream works by WebSocket as well."""
    url = f"ws://{plant_daemon.listens['ws']}"
    assert jet("watch", "plant/pump/mode", "-n", "1", "-o", "value", "--url", url) == (0, "manual\n", "")


@pytest.mark.parametrize("case", ["fanout", "set", "call", "states"])
def test_bench(jet: Jet, owner: jetbus.Peer, case: str) -> None:
    """Each case of bench counts what it did and leaves nothing behind."""
    code, out, err = jet("bench", case, "--count", "200")
    printed = json.loads(out)
    assert (code, err, printed["case"], printed["count"]) == (0, "", case, 2000 if case == "fanout" else 200)
    assert printed["p50_ms"] <= printed["p99_ms"] <= printed["max_ms"]
    assert owner.get_all("jetbench/**") == {}


def test_daemon(jet: Jet) -> None:
    """jet daemon is jetd: it prints where it listens, and ends on Ctrl-C with exit code 0."""
    with jet.start(*DAEMON) as daemon:
        ready = daemon.line()
        assert ready.startswith("ready tcp=127.0.0.1:")
        assert jet("get", "$jet/pid", "-o", "value", "--url", f"jet://{ready.partition('=')[2]}").out.strip().isdigit()
        assert daemon.interrupt().code == 0
