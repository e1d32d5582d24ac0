"""The past in a real Chromium: charts, time travel, play, differences, restore; logins; pages about the bus itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import jetbus
from support.browser import NEEDS_CHROMIUM, WITHIN_MS
from support.daemon import Daemon
from support.radar import serve_radar

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a journal; each test has paths of its own."""
    with Daemon.start("--journal", str(tmp_path_factory.mktemp("journal") / "log")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def radar(daemon: Daemon) -> Iterator[str]:
    with serve_radar(f"jet://{daemon.listens['tcp']}") as address:
        yield address


@pytest.fixture
def owner(daemon: Daemon) -> Iterator[jetbus.Peer]:
    with jetbus.Peer(f"jet://{daemon.listens['tcp']}", name="plant") as peer:
        yield peer


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[[str], Page]]:
    """Opens pages; whatever one writes to its console fails the test, except that a server is away."""
    with ExitStack() as stack:
        complaints: list[str] = []

        def open_page(address: str) -> Page:
            context = stack.enter_context(browser.new_context(viewport={"width": 1300, "height": 800}))
            page = context.new_page()
            page.set_default_timeout(WITHIN_MS)
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(address)
            return page

        yield open_page
    assert [text for text in complaints if "ERR_CONNECTION_REFUSED" not in text and "401" not in text] == []


def read_now(owner: jetbus.Peer) -> int:
    """Return an instant that is after all that this peer has done so far."""
    now: int = owner.call("$jet/journal/offsets")["now"]
    return now


def test_a_chart_of_several_states(radar: str, owner: jetbus.Peer, open_page: Callable[[str], Page]) -> None:
    """Numbers are lines, texts are bands, each with its value; one can be left out, and all can be exported."""
    speed = owner.add_state("chart/speed", 1)
    owner.add_state("chart/mode", "auto")
    speed.change(7)
    page = open_page(f"{radar}#view=charts&chart=chart/speed%0Achart/mode")
    page.locator(".chart canvas").wait_for()
    page.locator(".bands rect").first.wait_for()
    legend = page.locator(".cursor")
    legend.get_by_text("7", exact=True).wait_for()
    legend.get_by_text("auto", exact=True).wait_for()
    speed.change(8)
    legend.get_by_text("8", exact=True).wait_for()
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Back to live").click()
    page.get_by_text("Events", exact=True).click()
    page.locator(".events").get_by_text("chart/mode").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="JSON lines").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert {json.loads(line)["path"] for line in lines} == {"chart/speed", "chart/mode"}
    page.get_by_label("Leave out chart/mode").click()
    page.locator(".bands").wait_for(state="detached")
    page.get_by_label("Add a path to the chart").fill("chart/mode")
    page.get_by_role("button", name="Add", exact=True).click()
    page.locator(".bands").wait_for()


def test_a_spike_is_drawn(radar: str, owner: jetbus.Peer, open_page: Callable[[str], Page]) -> None:
    """Of ten thousand samples one is high: the legend of the whole range has it."""
    state = owner.add_state("spike", 1)
    for number in range(3000):
        state.change(9999 if number == 1500 else number % 2)
    owner.get("spike")
    page = open_page(f"{radar}#path=spike")
    page.locator(".chart canvas").wait_for()
    scale = page.locator(".chart canvas")
    assert scale.count() == 1
    page.get_by_role("button", name="1 d", exact=True).click()
    page.locator(".cursor").get_by_text("to 9999").wait_for()


def shown_values(page: Page, paths: dict[str, Any]) -> dict[str, str]:
    """Return the values in the rows of some paths."""
    rows = {row.get_attribute("title"): row for row in page.locator(".row[aria-level] .text").all()}
    cells = {path: rows[path].locator("xpath=ancestor::*[contains(@class,'row')][1]") for path in paths if path in rows}
    return {path: cell.locator(".value").inner_text() for path, cell in cells.items()}


def test_time_travel_equals_as_of(radar: str, owner: jetbus.Peer, open_page: Callable[[str], Page]) -> None:
    """The tree of an instant has exactly the values that the bus gives for it, in a frame of its own."""
    states = {name: owner.add_state(f"travel/{name}", 0) for name in "abc"}
    instants = []
    for round_number in range(1, 4):
        for name, state in states.items():
            state.change(f"{name}{round_number}")
        instants.append(read_now(owner))
    states["b"].remove()
    instants.append(read_now(owner))
    for instant in instants:
        page = open_page(f"{radar}#at={instant}&rule=travel/**")
        page.locator(".page.past").wait_for()
        page.get_by_text("Return to the present").wait_for()
        then = owner.get_all("travel/**", as_of=instant)
        page.wait_for_function("count => document.querySelectorAll('.row[aria-level]').length === count", arg=len(then))
        assert shown_values(page, then) == then
        page.get_by_role("button", name="Live").click()
        page.locator(".page:not(.past)").wait_for()


def test_the_past_is_played(radar: str, owner: jetbus.Peer, open_page: Callable[[str], Page]) -> None:
    """Playing moves the instant on, with the values and the states that come and go."""
    state = owner.add_state("play/number", 1)
    begin = read_now(owner)
    state.change(2)
    owner.add_state("play/new", "here")
    read_now(owner)
    page = open_page(f"{radar}#at={begin}&rule=play/**")
    page.locator(".row .value").get_by_text("1", exact=True).wait_for()
    page.get_by_role("button", name="Play 10 times as fast").click()
    page.locator(".row .value").get_by_text("2", exact=True).wait_for()
    page.get_by_text("Playing the past").or_(page.get_by_text("The past", exact=True)).first.wait_for()


def test_differences_and_restore(radar: str, owner: jetbus.Peer, open_page: Callable[[str], Page]) -> None:
    """From an instant of the past one sees what differs now, sets it back with one press, and reads each refusal."""

    def refuse(_value: Any) -> None:
        raise jetbus.Refused("locked by the operator")

    free = owner.add_state("back/free", "old", on_set=lambda _value: None)
    locked = owner.add_state("back/locked", 1, on_set=refuse)
    then = read_now(owner)
    free.change("new")
    locked.change(2)
    owner.add_state("back/added", True)
    read_now(owner)
    page = open_page(f"{radar}#at={then}")
    page.get_by_role("button", name="Compare with now").click()
    page.get_by_label("Rule").fill("back/**")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    table = page.get_by_label("Differences")
    for text in ("back/added", "added", "old", "new", "+1"):
        table.get_by_text(text, exact=True).wait_for()
    page.get_by_text("3 differences").wait_for()
    page.get_by_role("button", name="Restore …").click()
    page.get_by_role("button", name="Set 2 states back").click()
    page.get_by_text("1 set back, 1 refused.").wait_for()
    page.get_by_text("refused: locked by the operator").wait_for()
    assert owner.get("back/free") == "old"
    assert owner.get("back/locked") == 2


def test_pages_about_the_bus(radar: str, owner: jetbus.Peer, open_page: Callable[[str], Page]) -> None:
    """Peers with what they own and fetch, the journal with its size, and a pipeline with its alarms."""
    owner.add_state("about/mine", 1)
    owner.fetch("about/none/**", callback=lambda _event: None)
    owner.add_state("sp/pipeline/batch", {"number": 4, "events": 120, "seconds": 0.4, "at": None})
    owner.add_state("sp/pipeline/lag", {"events": 12, "seconds": 0.5})
    owner.add_state("sp/pipeline/ui", "http://127.0.0.1:4040")
    owner.add_state("sp/rollups/1s/demo/about/mine", {"mean": 1})
    alarm = owner.add_state("sp/alarms/hot/demo/about/mine", {"what": "raised", "severity": "high", "value": 1})
    with jetbus.Peer(owner.url, name="visitor") as visitor:
        visitor.add_state("about/visitor", 1)
        page = open_page(f"{radar}#view=peers")
        page.get_by_role("button", name="visitor", exact=True).click()
        page.get_by_label("Owns").get_by_text("about/visitor").wait_for()
        page.get_by_role("button", name="plant", exact=True).click()
        page.get_by_label("Fetches").get_by_text("about/none/").wait_for()
        page.get_by_role("button", name="Close visitor").click()
    page.get_by_role("button", name="Journal").click()
    page.get_by_text("unlimited").wait_for()
    page.get_by_text("Daemon started").wait_for()
    page.get_by_role("button", name="Pipeline").click()
    page.get_by_text("0.5 s, 12 events").wait_for()
    page.get_by_text("1 raised").wait_for()
    page.get_by_label("Chart of about/mine").click()
    page.get_by_label("Alarms").locator("canvas").wait_for()
    assert page.get_by_role("link", name="Spark UI").get_attribute("href") == "http://127.0.0.1:4040"
    alarm.change({"what": "cleared", "severity": "high", "value": 1})
    page.get_by_text("none raised").wait_for()


def test_login(tmp_path: Path, open_page: Callable[[str], Page]) -> None:
    """On a daemon with users a login shows more, and actions that a user may not do are not offered."""
    groups = {"fetchGroups": ["staff"], "setGroups": ["staff"], "callGroups": ["staff"]}
    users = {
        "ann": {"password": "secret", "admin": True, "auth": groups},
        "bob": {"password": "secret", "auth": groups},
    }
    file = tmp_path / "users.json"
    file.write_text(json.dumps({"users": users}))
    options = ("--users", str(file), "--journal", str(tmp_path / "log"), "--journal-groups", "staff")
    with Daemon.start(*options) as daemon, serve_radar(f"jet://{daemon.listens['tcp']}") as radar:
        url = f"jet://{daemon.listens['tcp']}"
        with jetbus.Peer(url, user="ann", password="secret", name="plant") as owner:
            owner.add_state("secret/plan", 1, access={"fetchGroups": ["staff"]})
            owner.add_state("open/plan", 2)
            page = open_page(radar)
            page.get_by_text("open", exact=True).wait_for()
            assert page.get_by_text("secret", exact=True).count() == 0
            assert page.get_by_label("Instant").count() == 0
            log_in(page, "ann", "wrong")
            page.get_by_role("alert").wait_for()
            page.get_by_label("Password").fill("secret")
            page.get_by_role("dialog").get_by_role("button", name="Log in").click()
            page.get_by_text("secret", exact=True).wait_for()
            page.get_by_label("Instant").wait_for()
            (cookie,) = page.context.cookies()
            assert cookie["httpOnly"]
            assert cookie["sameSite"] == "Strict"
            page.get_by_role("button", name="Peers").click()
            page.get_by_role("button", name="Close plant").wait_for()
            page.get_by_role("button", name="Log out").click()
            page.get_by_role("button", name="Log in").wait_for()
            log_in(page, "bob", "secret")
            page.get_by_role("button", name="Log out").wait_for()
            page.get_by_role("button", name="plant", exact=True).wait_for()
            assert page.get_by_role("button", name="Close plant").count() == 0


def test_a_user_without_rights(tmp_path: Path, open_page: Callable[[str], Page]) -> None:
    """A user who may only look is offered no form, no call, no restore and no kick, and sees nothing that is hidden."""
    from playwright.sync_api import expect

    staff = {"fetchGroups": ["staff", "guests"], "setGroups": ["staff"], "callGroups": ["staff"]}
    users = {
        "ann": {"password": "secret", "admin": True, "auth": staff},
        "eve": {"password": "secret", "auth": {"fetchGroups": ["guests"]}},
    }
    file = tmp_path / "users.json"
    file.write_text(json.dumps({"users": users}))
    options = ("--users", str(file), "--journal", str(tmp_path / "log"), "--journal-groups", "guests")
    tiles = [("pump/speed", "button"), ("pump/running", "switch"), ("pump/reset", "button")]
    board = {"title": "Pump", "tiles": [{"path": path, "kind": kind, "sends": "[]"} for path, kind in tiles]}
    with Daemon.start(*options) as daemon, ExitStack() as stack:
        url = f"jet://{daemon.listens['tcp']}"
        boards = tmp_path / "boards"
        boards.mkdir()
        (boards / "pump.json").write_text(json.dumps({"radar": "board", "version": 1, **board}))
        radar = stack.enter_context(serve_radar(url, "--boards", str(boards)))
        owner = stack.enter_context(jetbus.Peer(url, user="ann", password="secret", name="plant"))
        speed = owner.add_state("pump/speed", 1, on_set=lambda _rpm: None, access={"setGroups": ["staff"]})
        owner.add_state("pump/running", True, on_set=lambda _on: None, access={"setGroups": ["staff"]})
        owner.add_state("pump/plan", 1, access={"fetchGroups": ["staff"]})
        owner.add_method("pump/reset", lambda: None, access={"callGroups": ["staff"]})
        speed.change(2)
        read_now(owner)
        page = open_page(f"{radar}#path=pump/speed")
        set_button = page.get_by_role("button", name="Set", exact=True)
        call_button = page.get_by_role("button", name="Call", exact=True)

        def open_link(link: str) -> None:
            page.goto("about:blank")
            page.goto(f"{radar}#{link}")

        def look_around(user: str, may: int) -> None:
            log_in(page, user, "secret")
            page.get_by_role("button", name="Log out").wait_for()
            open_link("path=pump/speed")
            expect(page.locator(".facts .large")).to_have_text("2")
            page.get_by_text("Use it elsewhere").click()
            expect(page.get_by_text("jet get pump/speed")).to_be_visible()
            expect(page.get_by_text("jet set pump/speed")).to_have_count(may)
            expect(set_button).to_have_count(may)
            open_link("path=pump/reset")
            expect(page.get_by_text("jet call pump/reset")).to_have_count(may)
            expect(page.get_by_text("You may see this method, but not call it.")).to_have_count(1 - may)
            expect(call_button).to_have_count(may)
            open_link("path=pump/plan")
            expect(page.get_by_text("pump/plan is not on the bus.")).to_have_count(1 - may)
            page.get_by_label("Search").fill("plan")
            expect(page.get_by_text("1 match" if may else "0 matches")).to_be_visible()
            open_link("view=boards&board=pump")
            expect(page.locator(".tile")).to_have_count(len(tiles))
            expect(page.locator(".tile button.primary:enabled, .tile input:enabled")).to_have_count(3 * may)
            open_link("view=peers")
            page.get_by_role("button", name="plant", exact=True).wait_for()
            expect(page.get_by_role("button", name="Close plant")).to_have_count(may)
            open_link("view=compare&a=-1h")
            page.get_by_label("Differences").get_by_text("pump/speed").wait_for()
            expect(page.get_by_role("button", name="Restore …")).to_have_count(may)

        look_around("ann", 1)
        page.get_by_role("button", name="Log out").click()
        look_around("eve", 0)


def log_in(page: Page, user: str, password: str) -> None:
    page.get_by_role("button", name="Log in").click()
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("dialog").get_by_role("button", name="Log in").click()


def test_reconnect(open_page: Callable[[str], Page]) -> None:
    """A page says when the daemon is away, and goes on by itself when it is back."""
    first = Daemon.start()
    where = first.listens["tcp"]
    with serve_radar(f"jet://{where}") as radar:
        page = open_page(radar)
        page.locator(".connection.live").wait_for()
        first.stop()
        page.get_by_text("The daemon is not reachable, trying again").wait_for()
        with Daemon.start("--tcp", where) as second, jetbus.Peer(f"jet://{where}") as owner:
            assert second.listens["tcp"] == where
            owner.add_state("back/again", 1)
            page.locator(".connection.live").wait_for()
            page.get_by_text("back", exact=True).wait_for()


def test_under_a_sub_path(daemon: Daemon, owner: jetbus.Peer, open_page: Callable[[str], Page]) -> None:
    """Below a sub-path the page finds its scripts, its WebSocket and its history."""
    owner.add_state("below/number", 42)
    with serve_radar(f"jet://{daemon.listens['tcp']}", "--base", "/plant/radar") as radar:
        assert radar.endswith("/plant/radar/")
        page = open_page(f"{radar}#path=below/number")
        page.locator(".facts .large").get_by_text("42", exact=True).wait_for()
        page.locator(".chart canvas").wait_for()
