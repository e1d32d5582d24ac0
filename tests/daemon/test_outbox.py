"""The way out to one peer: one write for all that came together, and what happens to one that does not read."""

from __future__ import annotations

import itertools
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetbus.bus.bus import Bus
from jetbus.bus.sorting import SortedMatches
from jetbus.daemon.outbox import DRAIN_BYTES, Flow, SocketOutbox
from support.inmemory import IdleLoop, MemoryTransport, Peer, frames_of

SOFT_BYTES = 1000
HARD_BYTES = 10_000


class Full(MemoryTransport):
    """A transport that is full after every write: one that goes through the outbox's writes one at a time."""

    def __init__(self, outbox: SocketOutbox | None = None) -> None:
        super().__init__()
        self.outbox = outbox

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        super().write(data)
        if self.outbox is not None:
            self.outbox.pause()


class Story:
    """An owner and one fetcher on a real outbox."""

    def __init__(self, *, soft_bytes: int = SOFT_BYTES, hard_bytes: int = HARD_BYTES) -> None:
        self.bus = Bus()
        self.hits: Counter[str] = Counter()
        self.flow = Flow(IdleLoop(), soft_bytes, hard_bytes, self.hits)
        self.transport = Full()
        self.outbox = SocketOutbox(self.transport, self.flow)
        self.outbox.label = "the slow one"
        self.session = self.bus.connect(self.outbox)
        self.session.fresh = False
        self.outbox.audiences = self.session.fetches.values()
        self.owner = Peer(self.bus)
        self._read = 0

    def send(self, method: str, params: Any, **extra: Any) -> None:
        """The slow peer sends something."""
        message = json.dumps({**extra, "method": method, "params": params}, separators=(",", ":"))
        self.bus.receive(self.session, [message.encode()], 0.0)

    def add(self, path: str, value: Any) -> None:
        self.owner.notify("add", {"path": path, "value": value})

    def change(self, path: str, value: Any) -> None:
        self.owner.notify("change", {"path": path, "value": value})

    def remove(self, path: str) -> None:
        self.owner.notify("remove", {"path": path})

    def received(self) -> list[Any]:
        """Return the bytes written since the last call."""
        data = self.transport.written[self._read :]
        self._read += len(data)
        return [json.loads(frame) for frame in frames_of(data)]

    def short(self) -> list[str]:
        """The same, each message in a few letters: `event path value`, `result id` or `sorted n`."""
        return [_short(message) for message in self.received()]


def _short(message: dict[str, Any]) -> str:
    if "id" in message:
        return f"result {message['id']}"
    params = message["params"]
    if "n" in params:
        return f"sorted {params['n']}"
    return f"{params['event']} {params['path']} {str(params.get('value'))[:4]}"


@pytest.fixture
def story() -> Story:
    """A fetcher of everything who has read all there is, a state and its value."""
    return _fetching({})


def _fetching(params: dict[str, Any], **limits: int) -> Story:
    story = Story(**limits)
    story.add("a", 0)
    story.add("b", 0)
    story.send("fetch", {"id": "f", **params})
    story.flow.flush()
    story.received()
    return story


def _above_soft(story: Story) -> None:
    """Make the peer slow and fill its queue beyond the soft limit with what cannot be conflated."""
    story.outbox.pause()
    story.send("echo", {"filling": "x" * story.flow.soft_bytes}, id="filling")


# One write a turn.


def test_one_write_a_turn(story: Story) -> None:
    """All that a peer is told in one turn is one write."""
    for value in range(5):
        story.change("a", value)
        story.send("echo", {}, id=value)
    assert story.transport.writes[1:] == []
    story.flow.flush()
    assert len(story.transport.writes) == 2
    assert story.short() == [word for value in range(5) for word in (f"change a {value}", f"result {value}")]


def test_what_has_arrived_is_answered_at_once(story: Story) -> None:
    """Everything that messages cause is written at once when they are handled, before the event loop turns."""
    story.flow.gather()
    story.change("a", 1)
    story.change("b", 2)
    assert story.received() == []
    story.flow.gathered()
    assert story.short() == ["change a 1", "change b 2"]
    assert story.flow.sent == 2  # and one of the fetch


def test_commits_are_shared(story: Story) -> None:
    """A commit before writing is shared by all connections that bring something in the same turn."""
    commits: list[int] = []
    story.outbox.has_session = True

    def commit() -> bool:
        commits.append(1)
        return True

    story.flow.commit = commit
    for path in ("a", "b"):
        story.flow.gather()
        story.change(path, 1)
        story.flow.gathered()
    assert (story.received(), commits) == ([], [])
    story.flow.flush()
    assert story.short() == ["change a 1", "change b 1"]
    assert commits == [1]


def test_nothing_to_say_is_no_write(story: Story) -> None:
    """An outbox with nothing in it is not written."""
    story.flow.flush()
    story.outbox.flush()
    assert len(story.transport.writes) == 1


def test_writes_are_counted(story: Story) -> None:
    """Writes and bytes are counted for the metrics."""
    before = story.flow.sent_bytes
    story.change("a", 1)
    story.flow.flush()
    assert story.flow.sent == 2
    assert story.flow.sent_bytes - before == len(story.transport.writes[-1])


def test_waiting_bytes(story: Story) -> None:
    """Unread bytes are counted whether they are gathered, queued or in the socket."""
    assert story.outbox.waiting_bytes == 0
    story.send("echo", {}, id=1)
    gathered = story.outbox.waiting_bytes
    assert gathered > 0
    story.transport.stuck = True
    story.flow.flush()
    assert story.outbox.waiting_bytes == gathered
    story.outbox.pause()
    story.send("echo", {}, id=2)
    assert story.outbox.waiting_bytes == 2 * gathered


# Slow peers.


def test_a_slow_peer_is_told_later(story: Story) -> None:
    """While the socket takes nothing, nothing is written; then all of it is, in order."""
    story.outbox.pause()
    assert story.outbox.slow
    story.change("a", 1)
    story.send("echo", {}, id=1)
    story.change("b", 2)
    story.flow.flush()
    assert story.received() == []
    story.outbox.resume()
    assert story.short() == ["change a 1", "result 1", "change b 2"]
    assert not story.outbox.slow


def test_what_a_slow_peer_has_taken_is_freed() -> None:
    """A frame that is written goes out of memory, even if others behind it still wait."""
    story = Story(hard_bytes=10_000_000)
    frames = [bytes(DRAIN_BYTES), bytes(DRAIN_BYTES + 1)]

    def count_references() -> list[int]:
        return [sys.getrefcount(frame) for frame in frames]

    idle = count_references()
    story.outbox.pause()
    for frame in frames:
        story.outbox.put(frame)
    story.transport.outbox = story.outbox
    story.outbox.resume()
    story.transport.writes.clear()
    del frame
    assert count_references() == [idle[0], idle[1] + 1]


def test_below_the_soft_limit_all_is_told(story: Story) -> None:
    """A peer that is slow, but not very, misses nothing."""
    story.outbox.pause()
    for value in range(5):
        story.change("a", value)
    story.outbox.resume()
    assert story.short() == [f"change a {value}" for value in range(5)]
    assert story.flow.conflated == 0
    assert story.hits["outbox_soft_bytes"] == 0


def test_above_the_soft_limit_changes_take_the_place_of_older_ones(story: Story) -> None:
    """Above the soft limit a change takes the place of an older one of the same path, where that one waits."""
    _above_soft(story)
    story.change("a", 1)
    story.change("b", 1)
    story.send("echo", {}, id=1)
    for value in range(2, 50):
        story.change("a", value)
    story.change("b", 2)
    story.outbox.resume()
    assert story.short() == ["result filling", "change a 49", "change b 2", "result 1"]
    assert story.flow.conflated == 49
    assert story.hits["outbox_soft_bytes"] == 1


def test_add_and_remove_are_never_dropped(story: Story) -> None:
    """Changes are conflated only between an add and a remove."""
    _above_soft(story)
    for value in (1, 2):
        story.change("a", value)
    story.remove("a")
    story.add("a", 3)
    for value in (4, 5):
        story.change("a", value)
    story.remove("a")
    story.outbox.resume()
    assert story.short() == [
        "result filling",
        "change a 2",
        "remove a 2",
        "add a 3",
        "change a 5",
        "remove a 5",
    ]


def test_descriptions_are_never_dropped(story: Story) -> None:
    """A change of a schema is told to a slow peer whatever changes follow it, to one of 2012 and to one who asks."""
    story.send("fetch", {"id": "new", "schema": True, "path": {"equals": "a"}})
    story.send("fetch", ["old", "^a$"])
    story.flow.flush()
    story.received()
    _above_soft(story)
    story.owner.notify("change", {"path": "a", "schema": "one"})
    for value in (1, 2, 3):
        story.change("a", value)
    story.outbox.resume()
    received = [message["params"] for message in story.received() if "params" in message]
    assert {"event": "change", "path": "a", "data": {"schema": "one"}} in received
    assert {"event": "change", "path": "a", "value": 0, "schema": "one"} in received
    assert {"event": "change", "path": "a", "data": {"value": 3}} in received
    assert {"event": "change", "path": "a", "data": {"value": 2}} not in received


def test_a_value_that_stops_and_starts_matching(story: Story) -> None:
    """A change that makes a value stop or start matching is reported, however slow the peer is."""
    story = _fetching({"value": {"lessThan": 10}})
    _above_soft(story)
    for value in (1, 2, 20, 21, 3, 4, 5):
        story.change("a", value)
    story.outbox.resume()
    assert story.short() == ["result filling", "change a 2", "remove a 20", "add a 3", "change a 5"]


def test_every_is_never_conflated() -> None:
    """A fetch that asked for every change gets every one."""
    story = _fetching({"every": True})
    _above_soft(story)
    for value in range(20):
        story.change("a", value)
    story.outbox.resume()
    assert story.short() == ["result filling", *(f"change a {value}" for value in range(20))]
    assert story.flow.conflated == 0


def test_above_the_soft_limit_the_window_takes_the_place_of_its_parts() -> None:
    """Messages of a sorted fetch that wait give way to one with the whole window, as it is when it is written."""
    story = _fetching({"sort": {"byValue": "number"}})
    _above_soft(story)
    story.change("a", 1)
    story.send("echo", {}, id=1)
    for value in range(2, 20):
        story.change("a", value)
    assert story.outbox.waiting_bytes < 2 * SOFT_BYTES
    story.outbox.resume()
    filling, window, response = story.received()
    assert [filling["id"], response["id"]] == ["filling", 1]
    entries = [{"path": "b", "value": 0, "index": 1}, {"path": "a", "value": 19, "index": 2}]
    assert window["params"] == {"changes": entries, "n": 2}
    assert story.flow.queued_bytes == 0
    story.change("b", 30)
    story.flow.flush()
    assert story.short() == ["sorted 2"]


def _lose_owner(params: dict[str, Any], *, hard_bytes: int) -> Story:
    """Let an owner of 400 states leave, all of which are in the window of a sorted fetch."""
    story = Story(soft_bytes=10_000, hard_bytes=hard_bytes)
    for number in range(400):
        story.add(f"state {number}", number)
    story.send("fetch", {"id": "f", "sort": {"byValue": "number", "to": 1000}, **params})
    story.flow.flush()
    story.received()
    story.owner.disconnect()
    return story


def test_a_wide_window_when_its_owner_leaves() -> None:
    """Of the messages that one turn makes of a wide window few are encoded, and the window is sent at its end."""
    story = _lose_owner({}, hard_bytes=1_600_000)
    assert story.outbox.slow
    assert story.outbox.waiting_bytes < 150_000
    story.outbox.resume()
    received = story.received()
    assert len(received) < 10
    assert received[-1]["params"] == {"changes": [], "n": 0}
    assert not story.outbox.slow


def test_a_wide_window_of_a_peer_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is encoded for a peer that the daemon has closed, which cannot leave before the turn is over."""
    encoded = 0
    encode = SortedMatches.encode

    def count(matches: SortedMatches, start: int, end: int) -> bytes:
        nonlocal encoded
        encoded += 1
        return encode(matches, start, end)

    monkeypatch.setattr(SortedMatches, "encode", count)
    story = _lose_owner({"every": True}, hard_bytes=160_000)
    assert story.outbox.closed
    assert encoded < 20


def test_every_part_of_a_sorted_list_if_asked_for() -> None:
    """A sorted fetch with ``every`` gets each message."""
    story = _fetching({"sort": {"byValue": "number"}, "every": True})
    _above_soft(story)
    for value in range(1, 20):
        story.change("a", value)
    story.outbox.resume()
    assert story.short() == ["result filling", *["sorted 2"] * 19]
    assert story.flow.conflated == 0


def test_the_window_of_an_ended_fetch_is_left_out() -> None:
    """Nothing of a sorted fetch arrives behind the response to its unfetch, nor a window that waited for it."""
    story = _fetching({"sort": {"byValue": "number"}})
    _above_soft(story)
    for value in (1, 2, 3):
        story.change("a", value)
    story.send("unfetch", {"id": "f"}, id="end")
    story.change("a", 4)
    story.outbox.resume()
    assert story.short() == ["result filling", "result end"]


@settings(max_examples=200, deadline=None)
@given(
    window=st.sampled_from([{}, {"from": 2, "to": 4}, {"from": 3, "to": 3}]),
    steps=st.lists(st.sampled_from(["pause", "resume", "step", "echo", *"abcdef"]), max_size=80),
    chance=st.randoms(use_true_random=False),
)
def test_a_slow_sorted_fetcher_ends_like_a_fast_one(window: Any, steps: list[str], chance: random.Random) -> None:
    """However slowly a peer reads, its list ends as that of a peer that was never slow."""
    story = _fetching({"sort": {"byValue": "number", **window}}, soft_bytes=100, hard_bytes=1_000_000)
    fast = Peer(story.bus)
    fast.notify("fetch", {"id": "f", "sort": {"byValue": "number", **window}})
    lists: list[dict[int, Any]] = [{}, {}]

    def read(messages: list[Any], into: dict[int, Any]) -> None:
        for params in (message["params"] for message in messages if message.get("method") == "f"):
            into.update({entry["index"]: entry for entry in params["changes"]})
            for index in [index for index in into if index >= window.get("from", 1) + params["n"]]:
                del into[index]

    first = fast.received()
    for into in lists:
        read(first, into)
    present = {"a", "b"}
    for step in [*steps, "resume"]:
        if step == "pause":
            story.flow.flush()
            story.outbox.pause()
        elif step in ("resume", "step"):
            # The transport takes one write and is full again, or takes everything.
            story.transport.outbox = story.outbox if step == "step" else None
            story.outbox.resume()
            story.transport.outbox = None
        elif step == "echo":
            story.send("echo", {"filling": "x" * 60}, id=1)
        elif step not in present:
            story.add(step, chance.randrange(6))
            present.add(step)
        elif chance.random() < 0.2:
            story.remove(step)
            present.discard(step)
        else:
            story.change(step, chance.randrange(6))
    story.flow.flush()
    read(story.received(), lists[0])
    read(fast.received(), lists[1])
    assert lists[0] == lists[1]
    assert story.flow.queued_bytes == 0


def test_fetches_are_conflated_by_themselves(story: Story) -> None:
    """Two fetches of one path each get their newest value."""
    story.send("fetch", {"id": "g"})
    story.flow.flush()
    story.received()
    _above_soft(story)
    for value in range(5):
        story.change("a", value)
    story.outbox.resume()
    received = [message for message in story.received() if "method" in message]
    assert sorted((message["method"], message["params"]["value"]) for message in received) == [("f", 4), ("g", 4)]


def test_conflated_values_of_other_sizes(story: Story) -> None:
    """The count of queued bytes stays right when a change takes the place of a shorter or longer one."""
    _above_soft(story)
    story.change("a", "x")
    short = story.outbox.waiting_bytes
    story.change("a", "x" * 501)
    assert story.outbox.waiting_bytes == short + 500
    story.change("a", "y")
    assert story.outbox.waiting_bytes == short
    story.outbox.resume()
    assert story.outbox.waiting_bytes == 0
    assert len(story.transport.writes[-1]) == short


def test_after_the_queue_is_empty_nothing_is_conflated(story: Story) -> None:
    """Once it has caught up, a peer is as quick as any other."""
    _above_soft(story)
    for value in range(5):
        story.change("a", value)
    story.outbox.resume()
    story.received()
    for value in range(5, 8):
        story.change("a", value)
    story.flow.flush()
    assert story.short() == ["change a 5", "change a 6", "change a 7"]


# A queue that goes out piece by piece.


def _big(number: int) -> str:
    return f"{number:04}" + "x" * 100_000


@pytest.fixture
def trickle() -> Iterator[Story]:
    """A peer whose socket is full again after each write, below a soft limit of several writes."""
    story = _fetching({}, soft_bytes=1_000_000, hard_bytes=1 << 40)
    story.transport.outbox = story.outbox
    yield story
    story.outbox.close()


def _drain(story: Story) -> list[str]:
    """Let the socket take everything."""
    received = story.short()
    while story.outbox.waiting_bytes:
        story.outbox.resume()
        received += story.short()
    return received


def test_a_long_queue_goes_out_in_pieces(trickle: Story) -> None:
    """A queue is written piece by piece, as the socket takes it, and in order."""
    trickle.outbox.pause()
    for number in range(12):
        trickle.send("echo", _big(number), id=number)
    writes = len(trickle.transport.writes)
    trickle.outbox.resume()
    assert len(trickle.transport.writes) == writes + 1
    assert 0 < trickle.outbox.waiting_bytes < 12 * 100_000
    assert trickle.outbox.slow
    assert _drain(trickle) == [f"result {number}" for number in range(12)]
    assert len(trickle.transport.writes) > writes + 2


def test_what_comes_between_pieces_goes_last(trickle: Story) -> None:
    """Frames that arrive while the queue is written come after the queue."""
    trickle.outbox.pause()
    for number in range(8):
        trickle.send("echo", _big(number), id=number)
    trickle.outbox.resume()
    trickle.change("a", 1)
    trickle.send("echo", {}, id="last")
    trickle.flow.flush()
    assert _drain(trickle) == [*(f"result {number}" for number in range(8)), "change a 1", "result last"]


def test_what_is_written_is_not_changed_any_more(trickle: Story) -> None:
    """A change whose place has been written is told again, not put into the past."""
    trickle.outbox.pause()
    for number in range(12):
        trickle.send("echo", _big(number), id=number)
    trickle.change("a", 1)
    while trickle.outbox.waiting_bytes:
        trickle.outbox.resume()
    for number in range(12):
        trickle.send("echo", _big(number), id=number)
    trickle.change("a", 2)
    assert [word for word in _drain(trickle) if word.startswith("change")] == ["change a 1", "change a 2"]


def test_newest_value_after_the_queue_was_short_for_a_while(trickle: Story) -> None:
    """The newest value comes last, also when the queue was below the soft limit for some of the changes."""
    trickle.outbox.pause()
    for number in range(11):
        trickle.send("echo", _big(number), id=number)
    trickle.change("a", _big(1))
    trickle.outbox.resume()
    assert trickle.outbox.waiting_bytes < trickle.flow.soft_bytes
    trickle.change("a", _big(2))
    for number in range(11, 20):
        trickle.send("echo", _big(number), id=number)
    assert trickle.outbox.waiting_bytes > trickle.flow.soft_bytes
    trickle.change("a", _big(3))
    changes = [word for word in _drain(trickle) if word.startswith("change")]
    assert changes[-1] == "change a 0003"


def test_a_very_long_queue(story: Story) -> None:
    """Thousands of queued events and conflated changes arrive in order after many pieces."""
    story = _fetching({}, soft_bytes=1, hard_bytes=1 << 40)
    story.transport.outbox = story.outbox
    story.outbox.pause()
    values = itertools.count(1)
    sent = 0
    received: list[str] = []
    for _ in range(4):
        for _ in range(9000):
            story.send("echo", {}, id=sent)
            sent += 1
        for _ in range(3):
            story.change("a", next(values))
        story.outbox.resume()
        received += story.short()
    received += _drain(story)
    assert [word for word in received if word.startswith("result")] == [f"result {number}" for number in range(sent)]
    changes = [int(word.split()[2]) for word in received if word.startswith("change")]
    assert changes == sorted(changes)
    assert changes[-1] == 12


# Given up.


def test_at_the_hard_limit_the_peer_is_given_up(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that has not taken so many bytes is closed, logged once and counted; nothing is written any more."""
    story.outbox.pause()
    with caplog.at_level(logging.WARNING):
        for number in range(200):
            story.send("echo", {"filling": "x" * 100}, id=number)
    assert story.transport.aborted
    assert story.hits["outbox_hard_bytes"] == 1
    assert len(caplog.records) == 1
    assert "the slow one" in caplog.text
    assert "outbox_hard_bytes = 10000" in caplog.text
    story.outbox.resume()
    story.flow.flush()
    assert story.received() == []
    assert story.outbox.waiting_bytes == 0


def test_bytes_in_the_socket_count(story: Story) -> None:
    """Bytes that the operating system has not sent count towards the hard limit."""
    story.transport.stuck = True
    story.send("echo", {"filling": "x" * 9000}, id=1)
    story.flow.flush()
    assert not story.transport.aborted
    story.outbox.pause()
    story.send("echo", {"filling": "x" * 1000}, id=2)
    assert story.transport.aborted


def test_one_turn_beyond_the_hard_limit(story: Story) -> None:
    """A peer that makes the daemon gather too much in one turn is given up as well."""
    story.send("echo", {"filling": "x" * 6000}, id=1)
    assert not story.transport.aborted
    story.send("echo", {"filling": "x" * 6000}, id=2)
    assert story.transport.aborted
    story.flow.flush()
    assert story.received() == []


def test_events_of_one_turn_beyond_the_hard_limit(story: Story) -> None:
    """Events that fill the socket beyond the hard limit end the connection."""
    story.transport.stuck = True
    for _ in range(20):
        story.change("a", "x" * 1000)
    story.flow.flush()
    assert story.transport.aborted
    assert story.hits["outbox_hard_bytes"] == 1


def test_conflation_keeps_a_peer_alive(story: Story) -> None:
    """A peer that reads nothing is not given up for changes alone: they take each other's place."""
    _above_soft(story)
    for value in range(10_000):
        story.change("a", value)
    assert not story.transport.aborted
    story.outbox.resume()
    assert story.short() == ["result filling", "change a 9999"]


def test_the_others_are_not_harmed(story: Story) -> None:
    """Peers that share a fetch with one that is disconnected still receive events."""
    other = Peer(story.bus)
    other.fetch("f")
    story.outbox.pause()
    for value in range(200):
        story.change("b" if value % 2 else "a", value)
        story.send("echo", {"filling": "x" * 100}, id=value)
    assert story.transport.aborted
    story.bus.disconnect(story.session)
    story.change("a", 7)
    events = other.events()
    assert len(events) == 201
    assert events[-1] == {"path": "a", "event": "change", "value": 7}


def test_after_close_nothing_is_written(story: Story) -> None:
    """A closed outbox takes everything and writes nothing."""
    story.change("a", 1)
    story.outbox.close()
    story.change("a", 2)
    story.send("echo", {}, id=1)
    story.flow.flush()
    story.outbox.flush()
    assert story.received() == []


def test_limits_can_change_while_running(story: Story) -> None:
    """A new limit counts for connections that are there already."""
    story.flow.hard_bytes = 100
    story.outbox.pause()
    story.send("echo", {"filling": "x" * 200}, id=1)
    assert story.transport.aborted


@pytest.mark.parametrize("sizes", [[20_000, 20_000], [20_000, 30, 20_000], [10, 20_000]], ids=str)
def test_large_values_are_written_without_being_joined(sizes: list[int]) -> None:
    """Large values of one turn go to the socket as they are, and arrive whole and in order."""
    story = Story(soft_bytes=1 << 20, hard_bytes=1 << 22)
    other = Peer(story.bus)  # a second member: what is told is shared
    story.add("x", "")
    story.send("fetch", {"id": 1})
    other.notify("fetch", {"id": 1})
    story.outbox.flush()
    story.received()
    values = [str(number) * size for number, size in enumerate(sizes)]
    for value in values:
        story.send("echo", 0, id=1)  # closes the shared part before, so that there are several
        story.change("x", value)
    before = len(story.transport.writes)
    story.outbox.flush()
    assert [message["params"]["value"] for message in story.received() if "params" in message] == values
    assert len(story.transport.writes) - before == 2 * len(values)
    story.outbox.pause()
    story.change("x", "late")
    story.outbox.resume()
    assert story.short() == ["change x late"]
