"""The order of what a member is told: sharing an audience must not show.

The same operations are done twice: once with all peers, whose equal fetches share audiences, on outboxes that are
written and become slow at random moments; once for each peer with nobody else fetching. Both times it must be told
the same, byte by byte.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jetbus.bus.bus import Bus
from jetbus.bus.session import Session
from jetbus.daemon.outbox import Flow, SocketOutbox
from support.inmemory import IdleLoop, MemoryTransport, Peer, frames_of

NEVER_BYTES = 1 << 40
OWNER = 0
"""The peer of this number owns everything; it fetches like the others."""
PEERS = 4

AGES = 1000
"""Values are drawn in steps of this, so that the rest of each says which operation made it."""

RULES: list[dict[str, Any]] = [
    {},
    {"path": {"startsWith": "a"}},
    {"path": {"startsWith": "a/"}},
    {"path": {"equals": "a/1"}},
    {"path": {"contains": "1"}},
    {"value": {"lessThan": 50 * AGES}},
    {"sort": {"from": 1, "to": 2}},
    {"sort": {"byValue": "number", "descending": True, "to": 2}},
    {"path": {"startsWith": "b"}, "every": True},
]
FETCH_IDS = ["f", "g", 1]
PATHS = ["a/1", "a/2", "b/1"]
FETCHING = ("fetch", "unfetch", "unfetch quietly")
USUAL = (0, 3, 8)
"""The rule that peers of one library use with each of the fetch ids, so that they often share."""


@dataclass
class Connected:
    """A peer on a real outbox over a transport in memory."""

    flow: Flow
    transport: MemoryTransport = field(default_factory=MemoryTransport)
    read_bytes: int = 0

    def __post_init__(self) -> None:
        self.outbox = SocketOutbox(self.transport, self.flow)

    def connect(self, bus: Bus) -> Session:
        self.session = bus.connect(self.outbox)
        self.outbox.audiences = self.session.fetches.values()
        self.session.fresh = False
        return self.session

    def read(self) -> list[bytes]:
        """The frames written since the last time."""
        data = self.transport.written[self.read_bytes :]
        self.read_bytes += len(data)
        return frames_of(data)


Operation = tuple[Any, ...]


def _message(number: int, operation: Operation) -> dict[str, Any] | None:
    """Return the message of a peer for an operation; None if it sends nothing."""
    kind, *rest = operation
    if kind in ("add", "change"):
        return {"method": kind, "params": {"path": rest[0], "value": rest[1] * AGES + number}}
    if kind == "remove":
        return {"id": number, "method": "remove", "params": {"path": rest[0]}}
    if kind == "fetch":
        fetch_id, rule = FETCH_IDS[rest[1]], RULES[rest[2]]
        return {"id": number, "method": "fetch", "params": {"id": fetch_id, **rule}}
    if kind == "unfetch":
        return {"id": number, "method": "unfetch", "params": {"id": FETCH_IDS[rest[1]]}}
    if kind == "unfetch quietly":
        return {"method": "unfetch", "params": {"id": FETCH_IDS[rest[1]]}}
    if kind == "echo":
        return {"id": number, "method": "echo", "params": {}}
    return None


def _sender(operation: Operation) -> int:
    return operation[1] if operation[0] in (*FETCHING, "echo") else OWNER


def _send(bus: Bus, session: Session, message: dict[str, Any]) -> None:
    bus.receive(session, [json.dumps(message, separators=(",", ":")).encode()], 0.0)


def _told_alone(operations: list[Operation], who: int) -> list[list[bytes]]:
    """Return what a peer receives by each operation if nobody else fetches."""
    bus = Bus()
    flow = Flow(IdleLoop(), NEVER_BYTES, NEVER_BYTES, Counter())
    alone = Connected(flow)
    others = Peer(bus) if who != OWNER else None
    session = alone.connect(bus)
    received = []
    for number, operation in enumerate(operations):
        message = _message(number, operation)
        if message is not None and _sender(operation) == who:
            _send(bus, session, message)
        elif message is not None and _sender(operation) == OWNER and operation[0] not in FETCHING:
            assert others is not None
            _send(bus, others.session, message)
        alone.outbox.flush()
        received.append(alone.read())
    return received


def _told_together(
    operations: list[Operation], soft_bytes: int, *, changes_together: bool = False
) -> list[list[bytes]]:
    """Return what each peer receives if all fetch, are written to and become slow as the operations say."""
    bus = Bus()
    flow = Flow(IdleLoop(), soft_bytes, NEVER_BYTES, Counter())
    peers = [Connected(flow) for _ in range(PEERS)]
    for peer in peers:
        peer.connect(bus)
    for number, operation in enumerate(operations):
        message = _message(number, operation)
        if message is not None:
            if changes_together and operation[0] == "fetch":
                message["params"]["together"] = True
            _send(bus, peers[_sender(operation)].session, message)
        elif operation[0] == "flush all":
            flow.flush()
        else:
            getattr(peers[operation[1]].outbox, operation[0])()
    flow.flush()
    for peer in peers:
        peer.outbox.flush()
        peer.outbox.resume()
    return [peer.read() for peer in peers]


def _is_notification(frame: bytes) -> bool:
    return frame.startswith(b'{"method":')


def _same_order(groups: list[list[bytes]]) -> list[bytes]:
    """The frames of each operation, those for different fetches of one peer in one order: that one is not promised."""
    received = []
    for group in groups:
        for is_event, frames in itertools.groupby(group, _is_notification):
            some = list(frames)
            several = len({json.loads(frame)["method"] for frame in some}) > 1 if is_event else False
            received += sorted(some) if several else some
    return received


def _grouped_like(frames: list[bytes], groups: list[list[bytes]]) -> list[list[bytes]]:
    """The frames cut into as many groups, each as long as its model; what is left is a group of its own."""
    left = iter(frames)
    cut = [list(itertools.islice(left, len(group))) for group in groups]
    return [*cut, list(left)]


# What happens.

_who = st.integers(0, PEERS - 1)
_values = st.integers(0, 99)
_path = st.sampled_from(PATHS)
_operation: st.SearchStrategy[Operation] = st.one_of(
    st.tuples(st.just("add"), _path, _values),
    st.tuples(st.just("change"), _path, _values),
    st.tuples(st.just("change"), _path, _values),
    st.tuples(st.just("change"), _path, _values),
    st.tuples(st.just("remove"), _path),
    st.tuples(st.just("fetch"), _who, st.integers(0, len(FETCH_IDS) - 1), st.integers(0, len(RULES) - 1)),
    st.builds(lambda who, number: ("fetch", who, number, USUAL[number]), _who, st.integers(0, 2)),
    st.builds(lambda who, number: ("fetch", who, number, USUAL[number]), _who, st.integers(0, 2)),
    st.tuples(st.just("unfetch"), _who, st.integers(0, len(FETCH_IDS) - 1)),
    st.tuples(st.just("unfetch quietly"), _who, st.integers(0, len(FETCH_IDS) - 1)),
    st.tuples(st.just("echo"), _who),
    st.tuples(st.just("flush"), _who),
    st.just(("flush all",)),
)
_calm = st.lists(_operation, max_size=40)
_pauses: st.SearchStrategy[Operation] = st.one_of(st.tuples(st.just("pause"), _who), st.tuples(st.just("resume"), _who))
_uneasy = st.lists(st.one_of(_operation, _operation, _operation, _pauses), max_size=40)

_ALL_FETCH: list[Operation] = [
    ("add", "a/1", 1),
    ("add", "a/2", 2),
    *(("fetch", who, 0, 0) for who in range(PEERS)),
]
_TWO_AUDIENCES: list[Operation] = [
    *(("add", path, 1) for path in PATHS),
    *(("fetch", who, number, USUAL[number]) for who in (1, 2) for number in (1, 2)),
]
"""Two peers share one fetch of a/1 and another one of all below b."""


@given(_calm)
@example([*_ALL_FETCH, ("change", "a/1", 3), ("echo", 1), ("change", "a/1", 4), ("flush", 2), ("change", "a/1", 5)])
@example([*_ALL_FETCH, ("change", "a/1", 3), ("fetch", 1, 1, 4), ("change", "a/1", 4), ("unfetch", 1, 0)])
@example([*_TWO_AUDIENCES, ("change", "a/1", 2), ("change", "b/1", 2), ("change", "a/1", 3), ("change", "b/1", 3)])
@example([*_TWO_AUDIENCES, ("change", "a/1", 2), ("unfetch quietly", 1, 1), ("change", "a/1", 3)])
@settings(max_examples=300, deadline=None)
def test_sharing_does_not_show(operations: list[Operation]) -> None:
    """Each peer is told exactly what it would have been told alone, whenever its outbox is written."""
    together = _told_together(operations, NEVER_BYTES)
    for who in range(PEERS):
        alone = _told_alone(operations, who)
        assert _same_order(_grouped_like(together[who], alone)) == _same_order(alone)


@given(_uneasy)
@example([*_ALL_FETCH, ("pause", 1), ("change", "a/1", 3), ("resume", 1), ("change", "a/1", 4)])
@example([*_ALL_FETCH, ("pause", 1), ("pause", 2), ("change", "a/1", 3), ("resume", 2), ("change", "a/1", 4)])
@settings(max_examples=300, deadline=None)
def test_slow_peers_lose_no_order(operations: list[Operation]) -> None:
    """Below the soft limit a peer that is slow now and then is told the same, in the same order."""
    together = _told_together(operations, NEVER_BYTES)
    for who in range(PEERS):
        alone = _told_alone(operations, who)
        assert _same_order(_grouped_like(together[who], alone)) == _same_order(alone)


# Changes together.


def _one_by_one(frame: bytes) -> list[bytes]:
    """The notifications that one of several changes stands for."""
    message = json.loads(frame)
    params = message.get("params")
    if not isinstance(params, list):
        return [frame]
    head = b'{"method":' + json.dumps(message["method"]).encode()
    assert params[2::3] == [False] * (len(params) // 3)
    return [
        head + b',"params":{"path":%b,"event":"change","value":%d}}' % (json.dumps(path).encode(), value)
        for path, value in zip(params[::3], params[1::3], strict=True)
    ]


def _by_fetch(frames: list[bytes]) -> list[Any]:
    """Return the notifications of each fetch between two responses, and the responses."""
    story: list[Any] = [{}]
    for frame in itertools.chain.from_iterable(map(_one_by_one, frames)):
        if _is_notification(frame):
            story[-1].setdefault(json.dumps(json.loads(frame)["method"]), []).append(frame)
        else:
            story += [frame, {}]
    return story


@given(_uneasy)
@example([*_ALL_FETCH, ("change", "a/1", 3), ("change", "a/2", 3), ("echo", 1), ("change", "a/1", 4), ("flush", 2)])
@example([*_ALL_FETCH, ("change", "a/1", 3), ("remove", "a/1"), ("add", "a/1", 4), ("change", "a/1", 5)])
@example([*_ALL_FETCH, ("fetch", 1, 1, 0), *[("change", path, 1) for path in ("a/1", "a/2") * 2], ("echo", 1)])
@example([*_ALL_FETCH, ("change", "a/1", 3), ("pause", 1), ("change", "a/1", 4), ("resume", 1), ("change", "a/1", 5)])
@settings(max_examples=300, deadline=None)
def test_changes_together_are_the_same_changes(operations: list[Operation]) -> None:
    """Each fetch that takes changes together is told what it would have been told alone and one by one, in order."""
    together = _told_together(operations, NEVER_BYTES, changes_together=True)
    for who in range(PEERS):
        alone = list(itertools.chain.from_iterable(_told_alone(operations, who)))
        assert _by_fetch(together[who]) == _by_fetch(alone)


def test_fetches_of_one_peer_gather_side_by_side() -> None:
    """Two fetches of one peer that see the same states get one message each, not one a change."""
    operations: list[Operation] = [
        *_ALL_FETCH,
        ("fetch", 1, 1, 1),
        ("flush all",),
        *[("change", path, value) for value in range(5) for path in ("a/1", "a/2")],
    ]
    received = [json.loads(frame) for frame in _told_together(operations, NEVER_BYTES, changes_together=True)[1]]
    assert [(message["method"], len(message["params"])) for message in received[-2:]] == [("f", 30), ("g", 30)]
    assert received[-3]["params"]["event"] == "add"


# Above the soft limit.


def _is_change(frame: bytes) -> bool:
    return b'"event":"change"' in frame


def _is_sorted(frame: bytes) -> bool:
    return b'"changes":' in frame


def _lists_at_the_end(operations: list[Operation], who: int, frames: list[bytes]) -> dict[str, list[Any]]:
    """Return the lists of a peer's sorted fetches that go on, as a client puts them together."""
    lists: dict[str, list[Any]] = {}
    for message in map(json.loads, filter(_is_sorted, frames)):
        entries = lists.setdefault(json.dumps(message["method"]), [])
        for change in message["params"]["changes"]:
            entries[change["index"] - 1 :] = [change, *entries[change["index"] :]]
        del entries[message["params"]["n"] :]
    running: dict[int, bool] = {}
    for operation in operations:
        if operation[:2] == ("fetch", who):
            running.setdefault(operation[2], "sort" in RULES[operation[3]])  # an id that is taken is refused
        elif operation[0] in FETCHING and operation[1] == who:
            running.pop(operation[2], None)
    return {json.dumps(FETCH_IDS[n]): lists[json.dumps(FETCH_IDS[n])] for n, is_sorted in running.items() if is_sorted}


def _age(value: int) -> int:
    """Return the age of a value: each operation makes its own."""
    return value % AGES


def _believed_at_each_response(frames: list[bytes]) -> list[dict[tuple[str, str], int]]:
    """Return the values of each fetch as a client knows them, at each response and at the end."""
    believed: dict[tuple[str, str], int] = {}
    moments = []
    for frame in frames:
        message = json.loads(frame)
        params = message.get("params", {})
        if "id" in message:
            moments.append(dict(believed))
        elif "event" in params:
            key = json.dumps(message["method"]), params["path"]
            believed[key] = -1 if params["event"] == "remove" else params["value"]
    return [*moments, believed]


_FETCHED_AGAIN: list[Operation] = [
    *_ALL_FETCH,
    ("flush all",),
    ("pause", 1),
    ("change", "a/1", 10),
    ("change", "a/1", 11),
    ("unfetch", 1, 0),
    ("fetch", 1, 0, 0),
    ("change", "a/1", 12),
    ("resume", 1),
]
_change = st.tuples(st.just("change"), st.just("a/1"), _values)
_slow_story = st.lists(st.one_of(_operation, _change, _change, _pauses, _pauses), max_size=60)


@given(_slow_story, st.sampled_from([0, 100, 300]))
@example([*_ALL_FETCH, ("pause", 1), *[("change", "a/1", 7)] * 20, ("resume", 1)], 0)
@example(_FETCHED_AGAIN, 0)
@settings(max_examples=400, deadline=None)
def test_conflation_drops_only_old_values(operations: list[Operation], soft_bytes: int) -> None:
    """Above the soft limit a peer may miss old values: all else comes in order, and no value comes later than due.

    Sorted lists may come in other steps, and are the same at the end.
    """
    together = _told_together(operations, soft_bytes)

    def stays(frame: bytes) -> bool:
        return not _is_change(frame) and not _is_sorted(frame)

    for who in range(PEERS):
        alone = _told_alone(operations, who)
        kept_alone = [list(filter(stays, group)) for group in alone]
        recorded = list(filter(stays, together[who]))
        assert _same_order(_grouped_like(recorded, kept_alone)) == _same_order(kept_alone)
        changes_alone = Counter(frame for group in alone for frame in group if _is_change(frame))
        assert Counter(frame for frame in together[who] if _is_change(frame)) <= changes_alone
        believed = _believed_at_each_response(together[who])
        due = _believed_at_each_response(_same_order(alone))
        assert believed[-1] == due[-1]
        lists = _lists_at_the_end(operations, who, together[who])
        assert lists == _lists_at_the_end(operations, who, list(itertools.chain.from_iterable(alone)))
        for now, at_least in zip(believed, due, strict=True):
            assert [key for key in at_least if _age(now[key]) < _age(at_least[key])] == []


def test_newest_value_of_a_fetch_that_was_made_again() -> None:
    """A value that is newer than a fetch is told to that fetch, though an older fetch of the same id waits unread."""
    received = [json.loads(frame) for frame in _told_together(_FETCHED_AGAIN, soft_bytes=0)[1]]
    again = received.index({"id": len(_FETCHED_AGAIN) - 3, "result": True})
    values = [
        message["params"]["value"] for message in received[again:] if message.get("params", {}).get("path") == "a/1"
    ]
    assert values[-1] // AGES == 12


def test_what_was_gathered_goes_first() -> None:
    """Frames put in before a peer became slow are written before later ones, however soon it is quick again."""
    operations: list[Operation] = [
        *_ALL_FETCH,
        ("flush all",),
        ("change", "a/1", 10),
        ("pause", 1),
        ("change", "a/1", 11),
        ("resume", 1),
    ]
    received = [json.loads(frame) for frame in _told_together(operations, NEVER_BYTES)[1]]
    assert [message["params"]["value"] // AGES for message in received[-2:]] == [10, 11]


@pytest.mark.parametrize("slow_peers", [0, 1, PEERS])
def test_equal_fetches_are_one_audience(slow_peers: int) -> None:
    """Peers with the same fetch id and rule share one audience, also while some of them are slow."""
    bus = Bus()
    flow = Flow(IdleLoop(), NEVER_BYTES, NEVER_BYTES, Counter())
    peers = [Connected(flow) for _ in range(PEERS)]
    for peer in peers:
        _send(bus, peer.connect(bus), {"method": "fetch", "params": {"id": "f"}})
    for peer in peers[:slow_peers]:
        peer.outbox.pause()
    assert len(bus.fetches) == 1
    for peer in peers:
        bus.disconnect(peer.session)
    assert len(bus.fetches) == 0


DIFFERENT: dict[str, dict[str, Any]] = {
    "other id": {"id": "g"},
    "number as id": {"id": 1},
    "other rule": {"id": "f", "path": {"startsWith": "a"}},
    "other value rule": {"id": "f", "value": {"lessThan": 1}},
    "sorted": {"id": "f", "sort": {}},
    "every": {"id": "f", "every": True},
    "together": {"id": "f", "together": True},
}


@pytest.mark.parametrize("params", DIFFERENT.values(), ids=DIFFERENT)
def test_different_fetches_are_not(params: dict[str, Any]) -> None:
    """Fetches that are told different bytes share nothing."""
    bus = Bus()
    one, other = Peer(bus), Peer(bus)
    one.notify("fetch", {"id": "f"})
    other.notify("fetch", params)
    assert len(bus.fetches) == 2
