"""The page in a real Chromium."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import jetbus
from support.browser import NEEDS_CHROMIUM, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]


def test_the_tree_follows_the_bus(page: Page, owner: jetbus.Peer) -> None:
    """Rows come and go with the states, and show their values as they change."""
    speed = owner.add_state("pump/speed", 41)
    page.get_by_text("speed", exact=True).wait_for()
    speed.change(1234)
    page.get_by_text("1234", exact=True).wait_for()
    speed.remove()
    page.get_by_text("speed", exact=True).wait_for(state="detached")


def test_set(page: Page, owner: jetbus.Peer) -> None:
    """A number is set by its form; the button waits for a valid change."""
    from playwright.sync_api import expect

    owner.add_state("speed", 1, on_set=lambda rpm: min(rpm, 3000))
    page.get_by_text("speed", exact=True).click()
    button = page.get_by_role("button", name="Set", exact=True)
    expect(button).to_be_disabled()
    field = page.get_by_label("Set to")
    field.fill("12x")
    expect(button).to_be_disabled()
    expect(page.get_by_text("12x is not a number.")).to_be_visible()
    field.fill("9999")
    button.click()
    expect(page.locator(".facts .large")).to_have_text("3000")


def test_a_refused_set(page: Page, owner: jetbus.Peer) -> None:
    """The owner's refusal is shown where one has set."""

    def refuse(_rpm: float) -> None:
        raise jetbus.Refused("a pump does not turn backwards")

    owner.add_state("speed", 1, on_set=refuse)
    page.get_by_text("speed", exact=True).click()
    page.get_by_label("Set to").fill("-5")
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_text("a pump does not turn backwards").wait_for()


def test_call(page: Page, owner: jetbus.Peer) -> None:
    """A method is called with JSON arguments and shows its result."""
    owner.add_method("sum", lambda *numbers: sum(numbers))
    page.get_by_text("sum", exact=True).click()
    page.get_by_label("Arguments").fill("[20, 22]")
    page.get_by_role("button", name="Call").click()
    page.locator(".answer").get_by_text("42", exact=True).wait_for()


def test_search(page: Page, owner: jetbus.Peer) -> None:
    """The slash key leads to the search, which takes words and rules."""
    for number in range(30):
        owner.add_state(f"tank/{number}/level", number)
    page.get_by_text("tank", exact=True).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("tank/** value>27")
    page.get_by_text("2 matches").wait_for()
    page.get_by_text("tank/29/level", exact=True).wait_for()
    page.get_by_label("Search").fill("nothing-of-that-name")
    page.get_by_text("Nothing matches").wait_for()


def test_a_search_follows_the_bus(page: Page, owner: jetbus.Peer) -> None:
    """States that come and go after a search was typed are found and leave the list."""
    page.get_by_label("Search").fill("valve")
    page.get_by_text("0 matches").wait_for()
    valve = owner.add_state("valve/open", True)
    page.get_by_text("1 match", exact=True).wait_for()
    page.get_by_text("valve/open", exact=True).wait_for()
    valve.remove()
    page.get_by_text("0 matches").wait_for()


def test_history_and_time_travel(page: Page, owner: jetbus.Peer) -> None:
    """The chart has the values, and the time bar shows the tree of the past in a frame of its own."""
    speed = owner.add_state("speed", 1)
    speed.change(2)
    page.get_by_text("speed", exact=True).click()
    page.locator(".chart canvas").wait_for()
    page.get_by_label("Instant").fill("0")
    page.locator(".page.past").wait_for()
    page.get_by_role("button", name="Live").click()
    page.locator(".page:not(.past)").wait_for()


def test_the_keyboard_is_enough(page: Page, owner: jetbus.Peer) -> None:
    """Arrow keys open, move and choose."""
    owner.add_state("plant/pump/speed", 5)
    page.get_by_text("plant", exact=True).wait_for()
    rows = page.locator("#rows")
    rows.focus()
    page.keyboard.press("Home")
    for _ in range(200):
        active = page.locator(".row.active")
        if active.count() and active.get_attribute("aria-level") == "3":
            break
        expanded = active.get_attribute("aria-expanded") if active.count() else None
        page.keyboard.press("ArrowRight" if expanded == "false" else "ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="plant/pump/speed").wait_for()


def test_a_link_shows_the_same(page: Page, owner: jetbus.Peer, browser: Browser) -> None:
    """The address holds what is chosen; opened elsewhere it shows the same."""
    owner.add_state("plant/pump/speed", 5)
    page.get_by_label("Search").fill("speed")
    page.get_by_text("plant/pump/speed", exact=True).click()
    page.get_by_role("heading", name="plant/pump/speed").wait_for()
    other = browser.new_page()
    other.goto(page.url)
    other.get_by_role("heading", name="plant/pump/speed").wait_for()
    other.close()


def test_a_link_holds_rule_instant_and_layout(page: Page, owner: jetbus.Peer, browser: Browser) -> None:
    """Search, instant, chosen path, open nodes and the range of the chart come back from the address."""
    from playwright.sync_api import expect

    owner.add_state("plant/pump/speed", 5)
    owner.add_state("plant/tank/level", 1)
    then = owner.call("$jet/journal/offsets")["now"]
    with open_page(browser, f"{page.url}#at={then}&rule=plant/**&path=plant/pump/speed") as first:
        first.locator(".page.past").wait_for()
        first.locator(".chart canvas").wait_for()
        first.get_by_role("button", name="1 h", exact=True).click()
        first.get_by_role("button", name="Zoom in").click()
        first.get_by_role("button", name="Whole range").wait_for()
        # The ends of the range, not the length that was chosen before: the address follows a moment after the button.
        expect(first).to_have_url(re.compile("time=[0-9.]+%2C"))
        link = first.url
    with open_page(browser, link) as second:
        second.locator(".page.past").wait_for()
        expect(second.get_by_label("Search")).to_have_value("plant/**")
        expect(second.locator(".canvas .row")).to_have_count(2)
        second.get_by_role("heading", name="plant/pump/speed").wait_for()
        second.get_by_role("button", name="Whole range").wait_for()
        expect(second).to_have_url(link)
    with open_page(browser, f"{page.url}#open=plant&open=plant/tank") as third:
        expect(third.get_by_role("row", name="level")).to_have_count(1)
        expect(third.get_by_role("row", name="speed")).to_have_count(0)


def test_another_link_in_the_same_tab(page: Page, owner: jetbus.Peer) -> None:
    """A link that is pasted into the address of an open page is opened."""
    owner.add_state("plant/pump/speed", 5)
    page.goto(f"{page.url.partition('#')[0]}#path=plant/pump/speed")
    page.get_by_role("heading", name="plant/pump/speed").wait_for()


def test_a_link_while_the_page_writes_its_own(page: Page, owner: jetbus.Peer) -> None:
    """A pasted link is opened also if the page writes its address before it hears of the link."""
    owner.add_state("plant/pump/speed", 5)
    page.get_by_text("plant", exact=True).wait_for()
    page.evaluate("location.hash = 'path=plant/pump/speed'; history.replaceState(null, '', '#open=plant')")
    page.get_by_role("heading", name="plant/pump/speed").wait_for()


def test_a_hidden_tab_does_nothing(page: Page, owner: jetbus.Peer) -> None:
    """While the tab is hidden it is sent no values; shown again, it goes on."""
    from playwright.sync_api import expect

    frames: list[str] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: frames.append(str(frame))))
    speed = owner.add_state("speed", 1)
    page.reload()
    page.get_by_text("speed", exact=True).click()
    expect(page.locator(".facts .large")).to_have_text("1")
    page.locator(".chart canvas").wait_for()
    hide = "isHidden => { Object.defineProperty(document, 'hidden', { configurable: true, get: () => isHidden });"
    hide += " document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide, True)
    # Answered after the server has read that nothing is watched any more, since both take the same way.
    page.get_by_label("Search").fill("speed")
    page.get_by_text("1 match", exact=True).wait_for()
    frames.clear()
    speed.change(98765)
    owner.add_state("mark", 1)
    while not any('"mark"' in text for text in frames):
        page.wait_for_timeout(50)  # lets the events of the browser in
    assert not any("98765" in text for text in frames)
    page.evaluate(hide, False)
    expect(page.locator(".facts .large")).to_have_text("98765")
