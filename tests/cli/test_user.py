"""Users and access: over the bus as an admin, in the users file, and the explanation of a decision."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import jetbus
from jetbus.cli.commands.access import View, decide, decide_exactly
from jetbus.peer import Event
from support.daemon import Daemon
from support.jet import DEADLINE_S, Jet
from support.plant import url_of, with_users

ANN = ["--user", "ann", "--password-file", "ann.txt"]
NEW = ["--new-password-file", "new.txt"]


@pytest.fixture
def jet(guarded: tuple[Jet, jetbus.Peer]) -> Jet:
    """The command at a daemon with users."""
    made = guarded[0]
    (made.folder / "new.txt").write_text("brand new\n")
    return made


def logs_in(jet: Jet, user: str, file: str) -> bool:
    return jet("get", "$jet/pid", "--user", user, "--password-file", file).code == 0


def test_over_the_bus(jet: Jet) -> None:
    """An admin adds a user and changes a password over the bus; others may not."""
    assert jet("user", "add", "zoe", "--groups", "staff", *ANN, *NEW, "-o", "csv").out == "user,done\nzoe,added\n"
    assert logs_in(jet, "zoe", "new.txt")
    assert jet("user", "passwd", "zoe", *ANN, "--new-password-file", "pass.txt").code == 0
    assert logs_in(jet, "zoe", "pass.txt")
    assert not logs_in(jet, "zoe", "new.txt")
    refused = jet("user", "add", "joe", "--user", "bob", "--password-file", "pass.txt", *NEW)
    assert refused == (4, "", "jet: only admins may add users; admins may do more, log in as one with --user\n")
    assert jet("user", "add", "zoe", *ANN, *NEW) == (1, "", "jet: user 'zoe' exists already\n")
    assert jet("user", "add", "joe", "--admin", *ANN, *NEW).code == 2


def test_kick_as_an_admin(guarded: tuple[Jet, jetbus.Peer]) -> None:
    """On a bus with users only an administrator closes connections."""
    jet, owner = guarded
    with jetbus.Peer(owner.url, name="victim", reconnect=False):
        refused = jet("kick", "victim", "--user", "bob", "--password-file", "pass.txt")
        assert (refused.code, refused.out) == (4, "")
        assert jet("kick", "victim", *ANN).code == 0


def test_in_the_file(jet: Jet) -> None:
    """The first admin is made in the file, without a daemon; passwords are hashed and the file stays private."""
    words = ["--users", "first.json", "--url", "unix://@nobody-is-there"]
    assert jet("user", "add", "root", "--admin", "--groups", "staff,guests", *NEW, *words).code == 0
    file = jet.folder / "first.json"
    entry = json.loads(file.read_text())["users"]["root"]
    assert entry["password"].startswith("$argon2")
    assert entry["admin"] is True
    assert entry["auth"]["setGroups"] == ["staff", "guests"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert jet("user", "passwd", "root", *NEW, *words).code == 0
    assert json.loads(file.read_text())["users"]["root"]["password"] != entry["password"]
    assert jet("user", "rm", "rot", *words).err == "jet: there is no user rot in first.json; did you mean root?\n"
    assert jet("user", "rm", "root", *words).code == 0
    assert json.loads(file.read_text()) == {"users": {}}
    file.write_text("[]")
    assert jet("user", "rm", "root", *words).code == 2


def test_the_daemon_is_told_of_the_file(tmp_path: Path) -> None:
    """With --reload what was changed in the file takes effect at once: a user comes, gets a password, and goes."""
    folder = with_users(tmp_path)
    (folder / "new.txt").write_text("brand new\n")
    with Daemon.start("--users", str(folder / "users.json")) as daemon:
        jet = Jet(url_of(daemon), folder)
        file = ["--users", "users.json"]
        done = jet("user", "add", "zoe", *NEW, *file)
        assert json.loads(done.out)["then"].startswith("takes effect when the daemon gets SIGHUP")
        assert not logs_in(jet, "zoe", "new.txt")
        done = jet("user", "passwd", "zoe", "--new-password-file", "pass.txt", *file, "--reload")
        assert json.loads(done.out)["then"] == f"the daemon, process {daemon.process.pid}, reads it again"
        until(lambda: logs_in(jet, "zoe", "pass.txt"))
        assert jet("user", "rm", "zoe", *file, "--reload").code == 0
        until(lambda: not logs_in(jet, "zoe", "pass.txt"))


def test_init_makes_a_closed_bus(tmp_path: Path) -> None:
    """On the bus of a new users file strangers may do nothing, its groups what their rules say."""
    (tmp_path / "new.txt").write_text("brand new\n")
    jet = Jet("unix://@nobody-is-there", tmp_path)
    assert jet("user", "init", "root", *NEW, "--users", "plant.json").code == 0
    assert jet("user", "init", "root", *NEW, "--users", "plant.json").code == 1
    file = tmp_path / "plant.json"
    assert file.stat().st_mode & 0o777 == 0o600
    for name, group in (("press", "owners"), ("panel", "viewers")):
        assert jet("user", "add", name, "--groups", group, *NEW, "--users", "plant.json").code == 0
    listed = jet("user", "ls", "--users", "plant.json", "-o", "csv").out
    assert listed.splitlines() == [
        "user,admin,groups,login",
        "panel,false,viewers,password",
        "press,false,owners,password",
        "root,true,admin,password",
    ]
    assert jet("user", "ls", "--users", "plant.json", "-o", "value").out == "panel\npress\nroot\n"
    assert jet("user", "ls", "--users", "none.json").code == 5
    with Daemon.start("--users", str(file)) as daemon, ExitStack() as stack:

        def connect(name: str | None) -> jetbus.Peer:
            password = None if name is None else "brand new"
            return stack.enter_context(jetbus.Peer(url_of(daemon), user=name, password=password))

        press, stranger, panel = connect("press"), connect(None), connect("panel")
        press.add_state("press/force", 1)
        with pytest.raises(jetbus.NotAllowed, match="no add rule of its groups"):
            press.add_state("pump/speed", 1)
        assert stranger.get_all() == {}
        with pytest.raises(jetbus.NotAllowed, match="may not be added without a login"):
            stranger.add_state("mine", 1)
        assert panel.get_all() == {"press/force": 1}
        with pytest.raises(jetbus.NotAllowed):
            panel.set("press/force", 2)
        connect("root").add_state("anywhere", 1)


def until(true: Callable[[], bool]) -> None:
    """A signal has no answer: look until it has worked."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


REFUSED = {
    "a user without a name": (["add", "", *NEW], 2, "user name '' must not be empty; rename that user"),
    "too many groups": (["add", "zoe", "--groups", ",".join(map(str, range(40))), *NEW], 2, "must not be more than 32"),
    "an entry that is none": (["passwd", "odd", *NEW], 2, "the entry of odd is no object; correct it there"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_no_file_that_a_daemon_cannot_read(jet: Jet, case: str) -> None:
    """A change after which the daemon could not read the file is refused, and the file stays as it was."""
    file = jet.folder / "odd.json"
    entries = {"odd": 7} if "passwd" in REFUSED[case][0] else {}
    file.write_text(json.dumps({"users": entries}))
    words, code, problem = REFUSED[case]
    done = jet("user", *words, "--users", "odd.json")
    assert (done.code, done.out) == (code, "")
    assert problem in done.err
    assert json.loads(file.read_text()) == {"users": entries}
    assert [one.name for one in jet.folder.iterdir() if one.name.startswith(".users")] == []


GROUPS = {"fetchGroups": ["staff"], "setGroups": ["guests"], "callGroups": []}
STATE, READ_ONLY = Event("add", "a", 1), Event("add", "a", 1, fetch_only=True)
METHOD, CLOSED = Event("add", "a", is_method=True), Event("add", "a", is_method=True, fetch_only=True)

DECISIONS = {
    "fetch, shown": ("fetch", STATE, STATE, True, "it is shown"),
    "fetch, hidden": ("fetch", None, STATE, False, "hidden: its fetchGroups have none of this user's (staff)"),
    "set, hidden": ("set", None, STATE, False, "hidden"),
    "set, open": ("set", STATE, STATE, True, "one of this user's (guests)"),
    "set, lacking": (
        "set",
        READ_ONLY,
        STATE,
        False,
        "none of this user's (guests), or no rule lets this user; others may",
    ),
    "set, read-only": ("set", READ_ONLY, READ_ONLY, False, "read-only for all"),
    "set a method": ("set", METHOD, METHOD, False, "it is a method"),
    "call, open": ("call", METHOD, None, True, "open to everybody"),
    "call, lacking": (
        "call",
        CLOSED,
        METHOD,
        False,
        "none of this user's (none), or no rule lets this user; others may",
    ),
    "call, lacking for all": ("call", CLOSED, CLOSED, False, "its callGroups have none of this user's (none)"),
    "call a state": ("call", STATE, STATE, False, "it is a state"),
}


@pytest.mark.parametrize("case", DECISIONS)
def test_decisions(case: str) -> None:
    """A decision follows from what the user sees and from what another one sees, and its reason is told."""
    action, theirs, others, allowed, why = DECISIONS[case]
    decided = decide(action, View(theirs, GROUPS, []), View(others, None, []))
    assert decided[0] is allowed
    assert why in decided[1]


LISTS: dict[str, tuple[str, Event | None, Event | None, dict[str, list[str]], bool, str]] = {
    "fetch, none asked for": ("fetch", STATE, STATE, {}, True, "it asks for no fetchGroups"),
    "fetch, has it": (
        "fetch",
        STATE,
        STATE,
        {"fetchGroups": ["a", "staff"]},
        True,
        "are a, staff; this user has staff",
    ),
    "fetch, lacks it": ("fetch", None, STATE, {"fetchGroups": ["bosses"]}, False, "are bosses; this user has staff"),
    "set, has it": (
        "set",
        STATE,
        STATE,
        {"setGroups": ["guests"]},
        True,
        "its setGroups are guests; this user has guests",
    ),
    "set, lacks it": ("set", READ_ONLY, STATE, {"setGroups": ["staff"]}, False, "are staff; this user has guests"),
    "set, lacks it and hidden": (
        "set",
        None,
        STATE,
        {"setGroups": ["staff"], "fetchGroups": ["bosses"]},
        False,
        "its setGroups are staff; this user has guests, and it is hidden from this user",
    ),
    "set, hidden": ("set", None, STATE, {"fetchGroups": ["bosses"]}, False, "its fetchGroups are bosses"),
    "set, as for fetch": ("set", STATE, STATE, {"fetchGroups": ["staff"]}, True, "its fetchGroups are staff"),
    "set, nobody may": ("set", READ_ONLY, READ_ONLY, {}, False, "it is read-only"),
    "set, has it but nobody may": ("set", READ_ONLY, READ_ONLY, {"setGroups": ["guests"]}, False, "it is read-only"),
    "set a method": ("set", METHOD, METHOD, {}, False, "it is a method"),
    "call a state": ("call", None, STATE, {"fetchGroups": ["bosses"]}, False, "it is a state"),
    "call, an empty list": ("call", CLOSED, CLOSED, {"callGroups": []}, False, "are none; this user has none"),
}


@pytest.mark.parametrize("case", LISTS)
def test_exact_decisions(case: str) -> None:
    """If the required groups are known, the decision names them."""
    action, theirs, others, lists, allowed, why = LISTS[case]
    decided = decide_exactly(action, View(theirs, GROUPS, []), View(others, None, []), lists)
    assert decided[0] is allowed
    assert why in decided[1]


def test_access(guarded: tuple[Jet, jetbus.Peer]) -> None:
    """``jet access`` finds out on the bus what bob may do; a refusal is exit code 7."""
    jet, owner = guarded

    def accept(_value: object) -> None:
        """Take any value."""

    def check(action: str, path: str, *login: str) -> tuple[int, str]:
        done = jet("access", "check", "bob", action, path, "--as-password-file", "pass.txt", *login)
        return done.code, json.loads(done.out)["why"] if done.out else done.err

    owner.add_state("plant/open", 1, on_set=accept)
    owner.add_state("plant/hidden", 1, access={"fetchGroups": ["bosses"]}, on_set=accept)
    owner.add_state("plant/staff", 1, access={"setGroups": ["staff"]}, on_set=accept)
    assert check("set", "plant/open", *ANN) == (0, "it asks for no setGroups")
    assert check("fetch", "plant/hidden", *ANN) == (7, "its fetchGroups are bosses; this user has staff")
    assert check("set", "plant/hidden", *ANN) == (7, "its fetchGroups are bosses; this user has staff")
    with jetbus.Peer(owner.url, user="bob", password="secret") as bob, pytest.raises(jetbus.NotFound):
        bob.set("plant/hidden", 2)
    assert check("set", "plant/staff", *ANN) == (7, "its setGroups are staff; this user has guests")
    assert check("set", "plant/staff")[1].startswith("it is read-only for all, or its setGroups have none")
    assert check("set", "plant/opn") == (5, "jet: there is no plant/opn on the bus; did you mean plant/open?\n")
