"""The detail of an element, the palette and favourites in a real Chromium."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

import jetbus
from support.browser import NEEDS_CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]


def test_edits_survive_changes(page: Page, owner: jetbus.Peer) -> None:
    """A member that is edited keeps the edit while the others follow the bus, and only the edit is new in the set."""
    from playwright.sync_api import expect

    taken = []

    def accept(value: dict[str, object]) -> None:
        taken.append(value)

    settings = owner.add_state("settings", {"name": "a", "limits": {"low": 1, "high": 9}, "on": True}, on_set=accept)
    page.get_by_text("settings", exact=True).click()
    page.get_by_label("low", exact=True).fill("2")
    settings.change({"name": "b", "limits": {"low": 1, "high": 7}, "on": True})
    expect(page.get_by_label("high", exact=True)).to_have_value("7")
    expect(page.get_by_label("low", exact=True)).to_have_value("2")
    expect(page.get_by_role("row", name="limits.high")).to_contain_text("9")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_text("Set.", exact=True)).to_be_visible()
    assert taken == [{"name": "b", "limits": {"low": 2, "high": 7}, "on": True}]


def test_who_owns_and_who_has_set(page: Page, owner: jetbus.Peer, url: str) -> None:
    """Row and detail name the owner, and the detail who has set the state last."""
    from playwright.sync_api import expect

    owner.add_state("speed", 1, on_set=lambda rpm: rpm)
    with jetbus.Peer(url, name="desk") as other:
        other.set("speed", 7)
    page.get_by_text("speed", exact=True).click()
    expect(page.locator(".facts")).to_contain_text("plant#")
    expect(page.locator(".facts")).to_contain_text("desk#")
    expect(page.locator(".row .owner").filter(has_text="plant#")).to_have_count(1)


def test_bytes_as_text(page: Page, owner: jetbus.Peer) -> None:
    """Text in bytes is shown as text, and cannot be set by a form."""
    from playwright.sync_api import expect

    owner.add_state("report", jetbus.Blob("Grüße".encode(), mime="text/plain"), on_set=lambda value: value)
    page.get_by_text("report", exact=True).click()
    expect(page.locator(".facts pre")).to_have_text("Grüße")
    expect(page.get_by_role("form")).to_have_count(0)


def test_calls_by_fields_are_saved_and_repeated(page: Page, owner: jetbus.Peer) -> None:
    """Arguments are fields with or without names; a call is saved under a name, chosen and repeated."""
    from playwright.sync_api import expect

    owner.add_method("join", lambda *texts, **named: f"{texts} {named}")
    page.get_by_text("join", exact=True).click()
    page.get_by_role("button", name="Fields").click()
    page.get_by_role("button", name="Add an argument").click()
    page.get_by_label("Name of argument 1").fill("depth")
    page.get_by_label("Value of argument 1").fill("12")
    page.get_by_role("button", name="Call", exact=True).click()
    answers = page.locator(".answer")
    expect(answers.first).to_contain_text("{'depth': 12}")
    expect(answers.first).to_contain_text("ms")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_label("Name of the saved call").fill("deep")
    page.keyboard.press("Enter")
    page.reload()
    page.get_by_role("button", name="deep", exact=True).click()
    expect(page.get_by_label("Arguments")).to_have_value('{"depth":12}')
    page.get_by_role("button", name="Call", exact=True).click()
    answers.first.get_by_role("button", name="Repeat").click()
    expect(answers).to_have_count(2)


def _dose(litres: float, kind: Literal["acid", "base"], *, slowly: bool = False) -> dict[str, Any]:
    """Dose into the tank."""
    return {"litres": litres, "kind": kind, "slowly": slowly}


def test_methods_have_fields_by_their_signature(page: Page, owner: jetbus.Peer) -> None:
    """The form of a method has a field for each argument of its function, in its type; what it returns is said."""
    from playwright.sync_api import expect

    owner.add_method("dose", _dose)
    page.get_by_text("dose", exact=True).click()
    expect(page.locator(".description")).to_have_text("Dose into the tank")
    expect(page.get_by_text("It returns object.")).to_be_visible()
    page.get_by_label("litres").fill("2.5")
    page.get_by_label("kind").select_option("base")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("button", name="Call", exact=True).click()
    expect(page.locator(".answer").first).to_contain_text('"litres": 2.5')
    expect(page.locator(".answer header code")).to_have_text('{"litres":2.5,"kind":"base","slowly":false}')


def test_favourites_and_saved_searches(page: Page, owner: jetbus.Peer) -> None:
    """Favourites and searches are kept, listed above the tree, and hold across a reload."""
    from playwright.sync_api import expect

    for name in ("speed", "temperature"):
        owner.add_state(f"pump/{name}", 1)
    page.get_by_text("temperature", exact=True).click()
    page.get_by_role("button", name="Favourite").click()
    page.get_by_label("Search").fill("speed")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_label("Search").fill("")
    page.reload()
    page.get_by_role("button", name="Favourites 1").click()
    rows = page.locator(".canvas .row")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("pump/temperature")
    page.get_by_role("button", name="speed", exact=True).click()
    expect(rows).to_contain_text("pump/speed")


def test_the_palette(page: Page, owner: jetbus.Peer) -> None:
    """Ctrl+K goes to a path, a page or an action with a few letters."""
    from playwright.sync_api import expect

    for path in ("plant/pump/speed", "plant/pumphouse/light"):
        owner.add_state(path, 1)
    page.get_by_text("pumphouse", exact=True).wait_for()
    page.keyboard.press("Control+k")
    page.keyboard.type("pump")
    options = page.get_by_role("option")
    expect(options.first).to_contain_text("plant/pump/speed")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="plant/pumphouse/light").wait_for()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.keyboard.type("peers")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Peers").wait_for()


def test_a_raised_alarm_marks_its_state(page: Page, owner: jetbus.Peer) -> None:
    """A state whose alarm a pipeline has raised has a badge, until the alarm is cleared."""
    owner.add_state("tank/level", 95)
    alarm = owner.add_state("spark/alarms/level/bus/tank/level", {"what": "raised", "severity": "warning"})
    badge = page.locator(".row .badge", has_text="alarm")
    badge.wait_for()
    alarm.change({"what": "cleared"})
    badge.wait_for(state="detached")
