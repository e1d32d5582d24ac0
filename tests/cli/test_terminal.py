"""On a terminal: tables and colour, live screens, Ctrl-C from the keyboard, narrow windows, hostile texts."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

import pytest

import jetbus
from jetbus.journal import Writer
from support.daemon import Daemon
from support.jet import DAEMON, Jet
from support.plant import record, url_of

COLOUR = "\x1b["


def test_tables_and_colour(jet: Jet) -> None:
    """On a terminal values are a table with heads, in colour."""
    with jet.terminal("get", "plant/pump/mode", "plant/pump/speed") as terminal:
        code, text = terminal.end()
    assert code == 0
    assert COLOUR in text
    plain = re.sub(r"\x1b\[\d*m", "", text)
    assert plain == 'path              value\nplant/pump/mode   "manual"\nplant/pump/speed  1000\n'


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour(jet: Jet, name: str, value: str) -> None:
    """NO_COLOR, and a terminal that knows none, get no colour."""
    jet.environment[name] = value
    with jet.terminal("get", "plant/pump/mode") as terminal:
        assert terminal.end() == (0, 'path             value\nplant/pump/mode  "manual"\n')


def test_another_form_on_a_terminal(jet: Jet) -> None:
    """On a terminal, too, --output decides."""
    with jet.terminal("get", "plant/pump/mode", "-o", "jsonl") as terminal:
        assert terminal.end() == (0, '{"path":"plant/pump/mode","value":"manual"}\n')


@pytest.mark.parametrize("columns", [10, 24])
def test_narrow_terminals(jet: Jet, columns: int) -> None:
    """No line is wider than the terminal; what is cut ends in an ellipsis."""
    ended = together(jet, ["ls plant", "tree", "peers", "watch plant/** -n 3"], columns)
    for code, text in ended.values():
        assert code == 0
        assert max(map(len, text.splitlines())) <= columns
    assert "…" in ended["ls plant"][1]


def test_nothing_is_lost_of_sentences(jet: Jet) -> None:
    """Sentences, and what is the only record, are wrapped and not cut; where there is nothing, that is said."""
    url = jet.environment["JET_URL"]
    ended = together(jet, [f"doctor --url {url}", f"version --url {url}", "context ls"], 50)
    for code, text in ended.values():
        assert code == 0
        assert "…" not in text
    doctor, version, contexts = (text for _, text in ended.values())
    assert max(map(len, doctor.splitlines())) <= 50
    assert f"url {url}" in version.splitlines()
    assert contexts == "there are no contexts; `jet context add` creates one\n"


def test_days_are_told(jet: Jet) -> None:
    """An instant of another day is shown with its day, one of today as the time only."""
    record(jet.folder / "log", 3)
    (jet.folder / "old").mkdir()
    with Writer(jet.folder / "old", now_us=lambda: 1_772_323_200_000_000) as writer:
        writer.append("add", "state", "a", b"1")
        writer.append("add", "state", "b", b"1")
    young, old = (text for _, text in together(jet, ["at now --journal log", "at now --journal old"], 100).values())
    assert re.search(r"  \d\d:\d\d:\d\d\.\d{3}$", young, re.MULTILINE) or "-" in young  # it may be just past midnight
    assert re.search(r"  2026-0[23]-\d\d \d\d:\d\d:\d\d\.\d{3}$", old, re.MULTILINE)


def together(jet: Jet, lines: list[str], columns: int = 80) -> dict[str, tuple[int, str]]:
    """Run commands at the same time, each in a terminal of its own: how they ended and what they printed."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(jet.terminal(*line.split(), columns=columns, NO_COLOR="1")) for line in lines]
        return {line: terminal.end() for line, terminal in zip(lines, running, strict=True)}


def test_hostile_texts(jet: Jet, owner: jetbus.Peer) -> None:
    """Control characters in paths and values never reach the terminal as a command."""
    owner.add_state("test/\x1b[31mred\x07", "\x1b]0;owned\x07\x9b")
    for code, text in together(jet, ["get test/**", "ls test", "tree test", "watch test/** -n 1"]).values():
        assert code == 0
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text), text
        assert "\\x1b[31mred" in text


def test_wide_letters_stay_in_line(jet: Jet, owner: jetbus.Peer) -> None:
    """Letters that take two columns of a terminal keep a table straight."""
    owner.add_state("test/温度", 1)
    owner.add_state("test/abcd", 2)
    with jet.terminal("get", "test/**", NO_COLOR="1") as terminal:
        assert terminal.end()[1] == "path       value\ntest/温度  1\ntest/abcd  2\n"


STAYING = {
    "watch": (["watch", "plant/tank/level"], "plant/tank/level"),
    "watch nothing": (["watch", "nothing/here"], "nothing matches yet; waiting until Ctrl-C"),
    "hz": (["hz", "plant/tank/level", "--every", "100ms"], "per_s"),
    "top": (["top", "--every", "100ms"], "events/s"),
    "add": (["add", "test/own", "1"], "test/own is on the bus; Ctrl-C removes it"),
    "method": (["method", "test/own", "--exec", "true"], "test/own is on the bus; Ctrl-C removes it"),
    "bench": (["bench", "set", "--count", "1000000"], "bench set"),
    "daemon": (DAEMON, "ready tcp="),
    "record": (["record", "rec"], " in rec until Ctrl-C"),
    "replay": (["replay", "log", "--prefix", "test"], "replay"),
    "bridge": (["bridge", "{bare}", "--prefix", "test"], "mounted"),
}


@pytest.mark.parametrize("case", STAYING)
def test_ctrl_c_from_the_keyboard(jet: Jet, shared_daemons: Callable[..., Daemon], case: str) -> None:
    """Ctrl-C ends whatever runs, cleanly."""
    words, wanted = STAYING[case]
    if case == "replay":
        record(jet.folder / "log", 100)
    bare = url_of(shared_daemons())
    with jet.terminal(*(word.format(bare=bare) for word in words), columns=120) as terminal:
        terminal.until(wanted)
        terminal.press("\x03")
        code, text = terminal.end()
    assert code == (0 if case == "daemon" else 130)
    assert "Traceback" not in text
    assert "Error" not in text


def test_top_is_a_screen(jet: Jet) -> None:
    """top takes the whole screen, shows the busiest path with its rate, and gives the screen back."""
    with jet.terminal("top", "--every", "100ms", "--count", "2", columns=100) as terminal:
        code, text = terminal.end()
    assert code == 0
    assert "\x1b[?1049h" in text
    assert "plant/tank/level" in text
    assert text.count("measuring") == 1, "a look stays until the next one"
    assert text.rstrip().endswith("\x1b[?25h") or "\x1b[?1049l" in text


def test_q_leaves_the_screen(jet: Jet) -> None:
    """q leaves a live screen with exit code 0, other keys do not, and the terminal echoes again afterwards."""
    with jet.terminal("top", "--every", "100ms", "--count", "1000000", columns=100) as terminal:
        terminal.until("events/s")
        terminal.press("x\x1b[A")
        terminal.press("q")
        code, text = terminal.end()
    assert code == 0
    assert "1000000 events" not in text
    assert "\x1b[?1049l" in text


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["watch", "plant/tank/level", "--count", "1000000"], "plant/tank/level"),
        (["watch", "nothing/here"], "nothing matches yet"),
        (["hz", "plant/tank/level", "--every", "100ms"], "per_s"),
    ],
    ids=["watch", "watch nothing", "hz"],
)
def test_q_ends_a_stream(jet: Jet, words: list[str], wanted: str) -> None:
    """q ends a command that prints to a terminal until it is told to stop, with exit code 0."""
    with jet.terminal(*words, columns=100) as terminal:
        terminal.until(wanted)
        terminal.press("x\x1b[Aq")
        code, text = terminal.end()
    assert code == 0
    assert "1000000 events" not in text


def test_watch_keeps_its_columns(jet: Jet, owner: jetbus.Peer) -> None:
    """A long value continues in its own column, whole, and the values before and after stand where they stood."""
    owner.add_state("test/cols/a", 1)
    owner.add_state("test/cols/b", {"readings": [round(0.1 * number, 1) for number in range(60)], "unit": "mm/s"})
    owner.add_state("test/cols/c", "end")
    owner.add_state(f"test/cols/{'long' * 20}", 2)
    with jet.terminal("watch", "test/cols/*", "-n", "4", columns=80, NO_COLOR="1") as terminal:
        code, text = terminal.end()
    assert code == 0
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80 or "long" * 20 in max(lines, key=len)
    column = lines[0].index("1", lines[0].index("test/cols/a"))
    values = "".join(line[column:] for line in lines if "long" not in line)
    assert (
        values == '1{"readings":[' + ",".join(f"{0.1 * number:.1f}" for number in range(60)) + '],"unit":"mm/s"}"end"2'
    )
    assert sum(line.startswith(" " * column) for line in lines) >= 5


def test_a_constant_is_a_line(jet: Jet, owner: jetbus.Peer) -> None:
    """The plot of numbers that are all the same is a line with its value, not a block."""
    state = owner.add_state("test/constant", 7)
    for _ in range(3):
        state.change(7)
    owner.info()
    lines = jet("history", "test/constant", "--plot").out.splitlines()
    assert lines[1].split()[0] == "7"
    assert set(lines[1].split()[1]) == {"─"}
    assert len(lines) == 3


def test_passwords_are_asked_for_unseen(guarded: tuple[Jet, jetbus.Peer]) -> None:
    """A password is asked for on the terminal and not shown."""
    jet, owner = guarded
    owner.add_state("plant/a", 1, access={"fetchGroups": ["staff"]})
    with jet.terminal("get", "plant/a", "--user", "bob", "-o", "value") as terminal:
        terminal.until("password of bob: ")
        terminal.press("secret\n")
        code, text = terminal.end()
    assert code == 0
    assert text == "password of bob: \n1\n"


def test_errors_on_a_terminal(jet: Jet) -> None:
    """An error is one line on a terminal, too."""
    with jet.terminal("get", "plant/nothing", NO_COLOR="1") as terminal:
        code, text = terminal.end()
    assert code == 5
    assert text == "jet: there is no plant/nothing on the bus; `jet ls` lists what there is\n"
