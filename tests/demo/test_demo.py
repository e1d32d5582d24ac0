"""`jet demo` without Spark: what it shows, that what it tells to try works, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import jetbus
from jetbus.demo.analysis import AnalysisPhase
from jetbus.demo.messages import TIPS_MAX, draw_bars, draw_course, fold_command, list_tips
from support.demo import DEADLINE_S, READY, Lines, Screen, command, environment, left_behind, processes_of

STAYING = ("watch", "top")
"""Commands that end with Ctrl-C."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    """A demo that runs; shared, so that a test must leave the plant as it was."""
    folder = tmp_path_factory.mktemp("demo")
    with Lines(folder, "--headless", "--no-spark") as running:
        running.until("Spark is not running")
        yield running
        assert running.end(signal.SIGINT) == (0, "")
    assert left_behind(folder) == ([], [])


@pytest.fixture
def peer(demo: Lines) -> Iterator[jetbus.Peer]:
    with jetbus.Peer(demo.url) as peer:
        yield peer


# -- what there is


def test_it_tells_six_things_to_try(demo: Lines) -> None:
    """The demo says in six lines what to try next."""
    assert len(demo.tips()) == TIPS_MAX == 6
    assert {shlex.split(line)[3] for line in demo.tips()} >= {"watch", "set", "call", "history", "top"}


def test_it_tells_where_the_bus_is_in_a_browser(demo: Lines) -> None:
    """The demo prints the address of Radar, which has the history of the plant."""
    (address,) = [line.removeprefix("In a browser: ") for line in demo.said if line.startswith("In a browser: ")]
    with urllib.request.urlopen(f"{address}api/tree?rule=plant/tank/**", timeout=DEADLINE_S) as answer:  # noqa: S310 - the demo says where
        paths = {element["path"] for element in json.loads(answer.read())["elements"]}
    assert "plant/tank/level_percent" in paths


@pytest.mark.parametrize("number", range(TIPS_MAX))
def test_what_it_tells_to_try_works(demo: Lines, peer: jetbus.Peer, number: int) -> None:
    """The commands that the demo suggests work as they are printed."""
    line = demo.tips()[number]
    with demo.typed(line) as typed:
        assert typed.stdout is not None
        said = typed.stdout.readline()
        if shlex.split(line)[3] in STAYING:
            typed.send_signal(signal.SIGINT)
        out, complaints = typed.communicate(timeout=DEADLINE_S)
    stays = shlex.split(line)[3] in STAYING
    assert (typed.returncode, complaints) == (130 if stays else 0, ""), line
    assert (said + out).strip()
    peer.set("plant/heater/setpoint_c", 45.0)


def test_dozens_of_states_live(demo: Lines, peer: jetbus.Peer) -> None:
    """The plant has dozens of states, and many of them change."""
    before = peer.get_all("plant/**")
    assert len(before) >= 40
    assert demo.until(READY).startswith(f"{len(before)} states and 4 methods")
    changed = set()
    for event in peer.fetch("plant/**"):
        if event.kind == "change":
            changed.add(event.path)
        if len(changed) >= 15:
            break


@pytest.mark.parametrize(
    ("path", "asked", "taken", "warning"),
    [
        ("plant/pump/1/setpoint_rpm", 1200, 1200, None),
        ("plant/pump/3/setpoint_rpm", 15000, 3000, "the limit is 3000 rpm"),
        ("plant/heater/setpoint_c", -3, 10, "the limit is 10 °C"),
        ("plant/valve/opening_percent", 1e300, 100, "the limit is 100 %"),
    ],
    ids=["taken", "too-high", "too-low", "much-too-high"],
)
def test_settings_have_limits(peer: jetbus.Peer, path: str, asked: float, taken: float, warning: str | None) -> None:
    """A setting beyond its limit is adapted, the setter is told why, and the state shows what was taken."""
    before = peer.get_all(path)[path]
    result = peer.set(path, asked)
    assert (result.adapted, result.warning or None) == (warning is not None, warning)
    assert peer.get_all(path) == {path: taken}
    peer.set(path, before)


@pytest.mark.parametrize("asked", ["fast", True, None, [1], {}], ids=json.dumps)
def test_nonsense_is_refused(peer: jetbus.Peer, asked: Any) -> None:
    """A setting that is no number is refused, and the state stays as it was."""
    path = "plant/pump/3/setpoint_rpm"
    before = peer.get_all(path)
    with pytest.raises(jetbus.Refused) as refused:
        peer.set(path, asked)
    assert "takes a number from 0 to 3000 rpm" in json.dumps(refused.value.data)
    assert peer.get_all(path) == before


def test_methods_do_something(peer: jetbus.Peer) -> None:
    """Pumps stop and start, the filter is cleaned, counters are reset; each answers, and the states show it."""
    assert peer.call("plant/stop") == {"running": []}
    assert peer.get_all("plant/pump/2/running") == {"plant/pump/2/running": False}
    assert peer.call("plant/start", 1, 2) == {"running": [1, 2]}
    assert peer.call("plant/stop", 1) == {"running": [2]}
    assert peer.call("plant/start") == {"running": [1, 2, 3]}
    assert peer.call("plant/filter/clean")["was_percent"] > 0
    assert peer.get_all("plant/filter/clogged_percent")["plant/filter/clogged_percent"] < 40
    assert list(peer.call("plant/counter/reset", "delivered_l")) == ["delivered_l"]
    assert sorted(peer.call("plant/counter/reset")) == ["delivered_l", "energy_kwh", "faults_seen"]


@pytest.mark.parametrize(
    ("path", "args"), [("plant/stop", [7]), ("plant/start", [[1]]), ("plant/counter/reset", ["x"])]
)
def test_nonsense_is_not_called(peer: jetbus.Peer, path: str, args: list[Any]) -> None:
    """A method refuses what it does not know."""
    with pytest.raises(jetbus.Refused, match="Invalid params"):
        peer.call(path, *args)


def test_alarms_are_raised_live(peer: jetbus.Peer) -> None:
    """Alarms are raised beside the daemon, and can be acknowledged."""
    peer.set("plant/heater/setpoint_c", 80.0)
    for path, told in peer.get_all("alarms/active/**").items():
        assert told["state"] in ("unacknowledged", "acknowledged", "returned"), path
    peer.call("alarms/ack", path="plant/**", note="seen")
    active = peer.get_all("alarms/active/**").values()
    assert [told for told in active if told["state"] == "returned"] == []


def test_the_past_is_there(peer: jetbus.Peer) -> None:
    """The demo's bus is recorded, under the name of the demo."""
    events = peer.fetch("plant/tank/level_percent", since="-1h", policy="every")
    assert next(iter(events)).path == "plant/tank/level_percent"


def test_anybody_may_add_anything(demo: Lines, peer: jetbus.Peer) -> None:
    """Elements that others add where Spark publishes do not disturb the demo."""
    odd: list[tuple[str, Any]] = [
        ("spark/alarms/odd", 1),
        ("spark/rollups/odd", "x"),
        ("spark/pipeline/lag", []),
        ("spark/alarms/late/demo/plant/x", {"what": "raised", "raised_at": "now"}),
    ]
    for path, value in odd:
        peer.add_state(path, value)
    assert demo.until("^alarm ") == "alarm raised: late at plant/x"


# -- two of them, taken ports


def test_taken_ports(demo: Lines) -> None:
    """If the usual ports are in use, as in all tests, the demo says so, takes free ones, and prints the right --url."""
    assert "(the default ports are in use)" in demo.until(READY)
    assert ":11122" not in demo.url
    assert all(line.endswith(f" --url {demo.url}") for line in demo.tips())


ALONE = ("unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "demo")
"""Words that run a command in a network of its own, in which all ports are free."""


@pytest.mark.skipif(
    not all(map(shutil.which, ("unshare", "ip"))) or subprocess.run([*ALONE, "true"], check=False).returncode != 0,
    reason="needs unshare, ip, and the right to have a network of its own",
)
def test_default_ports(tmp_path: Path) -> None:
    """If the usual ports are free, the demo listens there, and the suggested commands need no --url."""
    with Lines(tmp_path, "--headless", "--no-spark", within=ALONE) as running:
        running.until("Spark is not running")
        assert "in use" not in running.until(READY)
        assert running.tips()
        assert not any("--url" in line for line in running.tips())
        assert running.end(signal.SIGTERM) == (0, "")
    assert left_behind(tmp_path) == ([], [])


def test_another_bus_in_use(tmp_path: Path) -> None:
    """If jet would ask another bus, the suggested commands have the demo's --url."""
    with Lines(tmp_path, "--headless", "--no-spark", JET_URL="jet://elsewhere") as running:
        running.until("Spark is not running")
        assert running.end(signal.SIGTERM) == (0, "")
        assert all(line.endswith(f" --url {running.url}") for line in running.tips())


# -- the end


def test_the_summary_as_a_record(tmp_path: Path) -> None:
    """With --output the summary is all that is printed, for a script to read."""
    done = subprocess.run(
        command("--for", "1s", "--no-spark", "--output", "json"),
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    (did,) = json.loads(done.stdout)
    assert did["url"].startswith("jet://")
    assert did["recorded"] > did["states"] >= 40
    assert (did["batches"], did["rollups"], did["alarms"]) == (0, 0, 0)


def test_it_ends_by_itself_with_a_summary(tmp_path: Path) -> None:
    """With --for the demo ends with a line of what was done."""
    with Lines(tmp_path, "--headless", "--no-spark", "--for", "1s") as running:
        assert running.end() == (0, "")
        summary = re.fullmatch(
            r"\S+ s at (\S+): (\d+) states on the bus, (\d+) events recorded; Spark was not running; (\S+) is removed",
            running.said[-1],
        )
        assert summary, running.said
        assert summary[1] == running.url
        assert int(summary[3]) > int(summary[2]) >= 40
        assert summary[4].startswith(str(tmp_path))
    assert left_behind(tmp_path) == ([], [])


def test_a_demo_in_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    """`jet demo | head -1` prints a line and ends without a complaint."""
    line = f"{shlex.join(command('--no-spark'))} | head -1"
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")
    assert left_behind(tmp_path) == ([], [])


@pytest.fixture
def hangs_up() -> Iterator[None]:
    """These tests may run under nohup, which the demo respects; here it starts without."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangs_up")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signals_leave_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """A polite kill and a hang-up end the demo with a summary, its daemon, and its folder."""
    with Lines(tmp_path, "--headless", "--no-spark") as running:
        running.until("Spark is not running")
        assert running.end(number) == (0, "")
        assert running.said[-1].endswith("is removed")
    assert left_behind(tmp_path) == ([], [])


def test_ctrl_c_before_it_has_begun(tmp_path: Path) -> None:
    """Ctrl-C while the daemon is still starting leaves nothing behind, either."""
    with Lines(tmp_path, "--headless", "--no-spark") as running:
        deadline = time.monotonic() + DEADLINE_S
        while not any(tmp_path.glob("jet-demo-*")):
            assert time.monotonic() < deadline
        assert running.end(signal.SIGINT) == (0, "")
    assert left_behind(tmp_path) == ([], [])


def test_a_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    """The daemon of a killed demo ends nevertheless."""
    with Lines(tmp_path, "--headless", "--no-spark") as running:
        running.until("Spark is not running")
        assert processes_of(tmp_path)
        running.process.kill()
        assert running.end()[0] == -signal.SIGKILL
    processes, folders = left_behind(tmp_path)
    assert (processes, len(folders)) == ([], 1)


def test_a_daemon_that_is_gone(tmp_path: Path) -> None:
    """If its daemon is killed, the demo says so in one sentence, ends with 3, and leaves nothing behind."""
    with Lines(tmp_path, "--headless", "--no-spark") as running:
        with jetbus.Peer(running.url) as peer:
            pid = peer.get_all("$jet/pid")["$jet/pid"]
        os.kill(pid, signal.SIGKILL)
        code, complaints = running.end()
    assert code == 3
    assert re.fullmatch(r"jet: the demo's daemon has ended \(.*\); start the demo again\n", complaints)
    assert left_behind(tmp_path) == ([], [])


def test_without_java(tmp_path: Path) -> None:
    """Without Java the demo runs, says that Spark is not running and how to get it, and still ends with a summary."""
    path = str(Path("/usr/bin/env").parent.parent / "nowhere")
    with Lines(tmp_path, "--headless", PATH=path, JAVA_HOME="") as running:
        running.until("Spark is starting")
        assert "install it" in running.until("Spark is not running: Spark needs Java 17")
        assert len(running.tips()) == TIPS_MAX
        assert running.end(signal.SIGINT) == (0, "")
        assert re.search(r" \d+ events recorded; Spark was not running", running.said[-1])
    assert left_behind(tmp_path) == ([], [])


def test_spark_may_be_installed_meanwhile(tmp_path: Path) -> None:
    """While another process installs Spark the bus runs already; when that has ended, Spark is looked for."""
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as installer,
        Lines(tmp_path, "--headless", JET_DEMO_INSTALLING=str(installer.pid), PATH="/nowhere", JAVA_HOME="") as demo,
    ):
        demo.until(READY)
        demo.until("Spark is being installed")
        assert installer.stdin is not None
        installer.stdin.close()
        installer.wait(DEADLINE_S)
        demo.until("Spark is starting|Spark is not running")
        code, _ = demo.end(signal.SIGINT)
    assert code == 0


# -- the screen


def test_the_screen(tmp_path: Path) -> None:
    """On a terminal the demo is a screen: the bus, Spark, states and how they move, and six things to try."""
    with Screen(tmp_path, "--no-spark", columns=120) as screen:
        screen.until("▂")
        screen.until("▇")
        frame = screen.frame()
        assert re.match(r"\d+ states and 4 methods of a plant at jet://", frame[0])
        assert frame[1].startswith("In a browser: http://127.0.0.1:")
        assert frame[2].startswith("Spark is not running")
        assert any(re.match(r"plant/tank/level_percent +\d+\.\d .*[▁-█]", line) for line in frame)
        assert sum(" -m jetbus.cli " in line for line in frame) == TIPS_MAX
        assert len(frame) <= 24
        screen.press("\x03")
        code, text = screen.end()
    assert code == 0
    assert "\x1b[?1049l" in text
    assert text.rstrip().endswith("is removed")
    assert "Traceback" not in text
    assert left_behind(tmp_path) == ([], [])


def test_a_closed_terminal(tmp_path: Path) -> None:
    """Closing the window ends the demo and leaves nothing behind."""
    with Screen(tmp_path, "--no-spark") as screen:
        screen.until("plant/tank/level_percent")
        screen.hang_up()
        assert screen.process.wait(DEADLINE_S) == 0
    assert left_behind(tmp_path) == ([], [])


def test_small_terminals(tmp_path: Path) -> None:
    """A window that is too small shows what fits, and the demo goes on; a large one shows all again. q ends it."""
    with Screen(tmp_path, "--no-spark") as screen:
        screen.until("plant/tank/level_percent")
        for rows, columns in ((24, 40), (5, 20), (1, 1), (24, 80)):
            frame = screen.resized(rows, columns)
            assert len(frame) <= rows
            assert max(map(len, frame)) <= columns
        assert sum(" -m jetbus.cli " in line for line in frame) == TIPS_MAX
        screen.press("q")
        code, text = screen.end()
    assert code == 0
    assert "Traceback" not in text


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour(tmp_path: Path, name: str, value: str) -> None:
    """NO_COLOR gets a screen without colour, and a terminal that can do nothing gets lines."""
    more: dict[str, Any] = {name: value}
    with Screen(tmp_path, "--no-spark", "--for", "1s", **more) as screen:
        code, text = screen.end()
    assert code == 0
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", text)
    assert ("\x1b[" in text) == (name == "NO_COLOR")


# -- parts of the screen


@pytest.mark.parametrize(
    ("course", "width", "drawn"),
    [([], 5, ""), ([1, 1], 5, "──"), ([0, 7], 5, "▁█"), ([9, 0, 1, 2], 3, "▁▅█"), ([1], 0, "")],
    ids=["nothing", "flat", "up", "the-last", "no-room"],
)
def test_bars(course: list[float], width: int, drawn: str) -> None:
    """A course is drawn between its lowest and its highest number, the newest at the right."""
    assert draw_bars(course, width) == drawn


@pytest.mark.parametrize(
    ("course", "drawn"),
    [([12.345, 45.61], "12.3..45.6   ▁█"), ([7.0, 7.0], "7            ──"), ([], "")],
    ids=["scale", "constant", "nothing"],
)
def test_courses_have_a_scale(course: list[float], drawn: str) -> None:
    """A course has its lowest and highest number before it, and a constant its value and a line."""
    assert draw_course(course, 40) == drawn
    assert draw_course(course, 10) == draw_bars(course, 10), "without room there is no scale"


def test_tips_stay() -> None:
    """The tips of Spark come after those that were there already, once it is ready."""
    demo = SimpleNamespace(
        jetd=SimpleNamespace(journal="log", has_alarms=True, url="jet://localhost"),
        analysis=SimpleNamespace(phase=AnalysisPhase.STARTING),
    )
    before = list_tips(cast(Any, demo), is_default=True)
    demo.analysis.phase = AnalysisPhase.PUBLISHING
    after = list_tips(cast(Any, demo), is_default=True)
    assert len(before) == TIPS_MAX
    assert after[:TIPS_MAX] == before
    assert len(after) == TIPS_MAX + 2


def test_a_wide_command_can_be_pasted() -> None:
    """A command that is too wide is broken as a shell reads it."""
    line = "jet history plant/tank/level_percent --since -1m --url jet://127.0.0.1:40000"
    assert fold_command(line, 80) == [line]
    two = fold_command(line, 60)
    assert max(map(len, two)) <= 60
    words = subprocess.check_output(["/bin/sh", "-c", "printf '%s ' " + "\n".join(two)], text=True)
    assert words.strip() == line
