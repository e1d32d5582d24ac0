"""Fetches in binary: their order, their events, their ids, and how they end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from support.binary.client import TRANSPORTS, BinaryPeer, connect
from support.binary.layout import (
    ABSENT,
    ADD_METHOD,
    ADD_STATE,
    FETCH,
    GET,
    NOTIFY,
    OCTETS,
    PNG,
    REMOVE_METHOD,
    REMOVE_STATE,
    UNFETCH,
    FetchEvent,
    Response,
    SortedNotification,
    Value,
    event,
    js,
    key,
    options,
    packed,
    request,
    text,
    u32,
)
from support.binary.witness import BinaryPicture
from support.daemon import Daemon
from support.wire import Wire

Connect = Callable[..., BinaryPeer]
ConnectJson = Callable[..., Wire]
StartDaemon = Callable[..., Daemon]


def events(fetch_id: int, *rows: tuple[str, str, Value]) -> list[FetchEvent]:
    return [FetchEvent(fetch_id, *row) for row in rows]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_response_before_events(binary: Connect, transport: str) -> None:
    """The response comes before all events; then the current matches in order of creation."""
    owner, fetcher = binary(), binary(transport)
    paths = [f"o/{name}" for name in "dbca"]
    for path in paths:
        owner.add_state(path, js(path))
    fetcher.send(request(3, FETCH, key("o/")), event(ADD_STATE, key("o/own") + packed(js("o/own"))))
    response, *received = fetcher.everything()
    assert isinstance(response, Response)
    assert (response.id, response.ok, len(response.payload)) == (3, True, 4)
    fetch_id = int.from_bytes(response.payload, "little")
    assert received == events(fetch_id, *(("add", path, js(path)) for path in [*paths, "o/own"]))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_events(binary: Connect, transport: str) -> None:
    """Adds, changes and removes are told in order, with their values; remove tells the last one."""
    owner, fetcher = binary(), binary(transport)
    fetch_id = fetcher.fetch("e/")
    png = Value(PNG, b"\x89PNG")
    owner.send(
        event(ADD_STATE, key("e/s") + packed(js(1))),
        event(ADD_STATE, key("f/s") + packed(js(1))),
        event(NOTIFY, key("e/s") + packed(png)),
        event(NOTIFY, key("e/s") + packed(png)),
        event(ADD_METHOD, key("e/m")),
        event(NOTIFY, key("e/s") + packed(text(""))),
        event(REMOVE_STATE, key("e/s")),
        event(REMOVE_METHOD, key("e/m")),
        event(ADD_STATE, key("e/s") + packed(js(2))),
    )
    assert fetcher.received(fetch_id, 8) == events(
        fetch_id,
        ("add", "e/s", js(1)),
        ("change", "e/s", png),
        ("change", "e/s", png),
        ("add", "e/m", ABSENT),
        ("change", "e/s", text("")),
        ("remove", "e/s", text("")),
        ("remove", "e/m", ABSENT),
        ("add", "e/s", js(2)),
    )
    assert fetcher.everything() == []


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_at_once_stay_in_order(binary: Connect, transport: str) -> None:
    """However the daemon puts events into messages, none is lost and their order stays."""
    owner, fetcher = binary("unix"), binary(transport)
    paths = [f"many/{i}" for i in range(5)]
    for path in paths:
        owner.add_state(path, js(-1))
    fetch_id = fetcher.fetch("many/")
    owner.send(*(event(NOTIFY, key(paths[i % 5]) + packed(js(i))) for i in range(500)))
    received = fetcher.received(fetch_id, 505)
    assert received[5:] == events(fetch_id, *(("change", paths[i % 5], js(i)) for i in range(500)))


def test_empty_start_means_everything(binary: Connect) -> None:
    """An empty startsWith fetches everything but the daemon's own states."""
    owner, fetcher = binary(), binary()
    owner.add_state("x", js(1))
    owner.add_state("ü/y", js(2))
    fetch_id = fetcher.fetch()
    assert [received.path for received in fetcher.received(fetch_id, 2)] == ["x", "ü/y"]
    assert fetcher.everything() == []


@pytest.mark.parametrize("start", ["ü", "ü/", "ü/漢", "ü/漢字"])
def test_prefixes_in_any_alphabet(binary: Connect, start: str) -> None:
    """A startsWith is compared character by character in any alphabet."""
    owner, fetcher = binary(), binary()
    owner.add_state("ü/漢字", js(1))
    owner.add_state("u/漢字", js(2))
    assert [received.path for received in fetcher.received(fetcher.fetch(start), 1)] == ["ü/漢字"]
    assert fetcher.everything() == []


def test_the_daemons_own_states(binary: Connect) -> None:
    """The daemon's own states are fetched by a prefix that says so, are JSON, and read-only."""
    fetcher = binary()
    fetch_id = fetcher.fetch("$jet/version")
    (version,) = fetcher.received(fetch_id, 1)
    assert version.fetch_only
    assert isinstance(version.value.json, str)


def test_fetch_only_bit(binary: Connect) -> None:
    """Bit 7 is set in every event of what cannot be set, and in no other."""
    owner, fetcher = binary(), binary()
    fetch_id = fetcher.fetch("ro/")
    owner.add_state("ro/yes", js(1), fetchOnly=True)
    owner.add_state("ro/no", js(1), fetchOnly=False)
    owner.notify("ro/yes", js(2))
    owner.notify("ro/no", js(2))
    owner.tell(REMOVE_STATE, key("ro/yes"))
    owner.tell(REMOVE_STATE, key("ro/no"))
    assert fetcher.received(fetch_id, 6) == [
        FetchEvent(fetch_id, name, path, js(value), path == "ro/yes")
        for name, value in (("add", 1), ("change", 2), ("remove", 2))
        for path in ("ro/yes", "ro/no")
    ]
    owner.add_state("ro/yes", js(3), fetchOnly=True)
    fetcher.received(fetch_id, 1)
    late = fetcher.fetch("ro/")
    assert fetcher.received(late, 1) == [FetchEvent(late, "add", "ro/yes", js(3), True)]


def test_own_elements_are_fetched(binary: Connect) -> None:
    """A peer is told of its own states, too."""
    peer = binary()
    fetch_id = peer.fetch("mine/")
    peer.add_state("mine/s", js(1))
    peer.notify("mine/s", js(2))
    assert peer.received(fetch_id, 2) == events(fetch_id, ("add", "mine/s", js(1)), ("change", "mine/s", js(2)))


def test_unfetch(binary: Connect) -> None:
    """After the response to unfetch nothing more is told; other fetches go on."""
    owner, fetcher = binary(), binary("ws")
    owner.add_state("u/s", js(0))
    ended, going = fetcher.fetch("u/"), fetcher.fetch("u/")
    fetcher.received(ended, 1)
    fetcher.received(going, 1)
    fetcher.unfetch(ended)
    owner.notify("u/s", js(1))
    assert fetcher.received(going, 1) == events(going, ("change", "u/s", js(1)))
    assert fetcher.everything() == []
    refusal = fetcher.refused(UNFETCH, u32(ended))
    assert (refusal[:2], refusal.data.json) == ((-32602, "Invalid params"), {"fetchIdNotExists": ended})


@pytest.mark.parametrize("number", [0, 77_777, 0xFFFFFFFF])
def test_unfetch_of_nothing(binary: Connect, number: int) -> None:
    """An unknown fetch id is refused."""
    assert binary().refused(UNFETCH, u32(number)).data.json == {"fetchIdNotExists": number}


def test_unfetch_in_the_same_breath(binary: Connect) -> None:
    """An unfetch that waits behind a flood of changes still ends the telling with its response."""
    owner, fetcher = binary(), binary()
    owner.add_state("u/s", js(0))
    fetch_id = fetcher.fetch("u/")
    owner.send(*(event(NOTIFY, key("u/s") + packed(js(i))) for i in range(300)))
    fetcher.send(request(900, UNFETCH, u32(fetch_id)))
    fetcher.response(900)
    fetcher.inbox.clear()
    owner.barrier()
    assert fetcher.everything() == []


def test_ids_are_unique_in_the_daemon(binary: Connect) -> None:
    """No two fetches that are alive have the same id, whoever asked for them."""
    peers = [binary(transport) for transport in TRANSPORTS * 2]
    ids = [peer.fetch("x/") for peer in peers for _ in range(5)]
    assert len(set(ids)) == len(ids)
    assert peers[0].refused(UNFETCH, u32(ids[-1])).data.json == {"fetchIdNotExists": ids[-1]}
    peers[-1].unfetch(ids[-1])


def test_fetches_end_with_their_peer(daemon: Daemon, binary: Connect) -> None:
    """The fetches of a peer end with its connection, and other fetchers still receive events."""
    owner, staying = binary(), binary()
    fetch_id = staying.fetch("x/")
    before = staying.get("$jet/fetches")
    with connect(daemon) as going:
        going.fetch("x/")
        going.fetch("", sort={})
    owner.add_state("x/s", js(1))
    assert staying.received(fetch_id, 1) == events(fetch_id, ("add", "x/s", js(1)))
    assert before[0].value.json >= 1


def test_same_rule_twice(binary: Connect) -> None:
    """The same rule may be fetched twice on one connection; each fetch is told everything with its own id."""
    owner, fetcher = binary(), binary()
    owner.add_state("t/s", js(0))
    one, two = fetcher.fetch("t/"), fetcher.fetch("t/")
    owner.notify("t/s", js(1))
    owner.tell(REMOVE_STATE, key("t/s"))
    for fetch_id in (one, two):
        assert fetcher.received(fetch_id, 3) == events(
            fetch_id, ("add", "t/s", js(0)), ("change", "t/s", js(1)), ("remove", "t/s", js(1))
        )
    assert fetcher.everything() == []


def test_same_rule_of_many_peers(binary: Connect) -> None:
    """Peers with one rule, who came at different times, see the same from then on."""
    owner = binary()
    owner.add_state("same/s", js(0))
    fetchers = []
    for i in range(1, 7):
        peer = binary(TRANSPORTS[i % 3])
        fetchers.append((peer, fetch_id := peer.fetch("same/")))
        assert peer.received(fetch_id, 1)[0].value == js(i - 1)
        owner.notify("same/s", js(i))
        for other, other_id in fetchers:
            assert other.received(other_id, 1) == events(other_id, ("change", "same/s", js(i)))
    assert all(peer.everything() == [] for peer, _ in fetchers)


def test_fetch_as_an_event(binary: Connect) -> None:
    """A fetch that is sent as an event is done the same way: there is no response, and everything is told."""
    peer = binary()
    peer.add_state("quiet/s", js(1))
    peer.tell(FETCH, key("quiet/"))
    (received,) = peer.everything()
    assert isinstance(received, FetchEvent)
    assert received[1:] == ("add", "quiet/s", js(1), False)
    peer.unfetch(received.fetch_id)


RULES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "path and start": ("a/", {"path": {"endsWith": "2"}}, ["a/2"]),
    "a start in the options": ("", {"path": {"startsWith": "a/1"}}, ["a/1"]),
    "path alone": ("", {"path": {"containsOneOf": ["/1", "/3"]}}, ["a/1", "b/3"]),
    "case": ("", {"path": {"equals": "A/1", "caseInsensitive": True}}, ["a/1"]),
    "value": ("", {"value": {"greaterThan": 1}}, ["a/2", "b/3"]),
    "text as a value": ("", {"value": {"equals": "vier"}}, ["b/4"]),
    "octets are an object": ("", {"value": {"isType": "object"}}, ["b/5"]),
    "a field of octets": ("", {"valueField": {"mime": {"equals": "application/octet-stream"}}}, ["b/5"]),
    "nothing": ("", {"value": {"equals": 99}}, []),
    "every": ("b/4", {"every": True}, ["b/4"]),
    "unknown option": ("b/4", {"unknown": 1}, ["b/4"]),
}


@pytest.mark.parametrize(("start", "named", "paths"), RULES.values(), ids=RULES)
def test_rules(binary: Connect, start: str, named: dict[str, Any], paths: list[str]) -> None:
    """Any rule can be given; it is added to a start that is not empty, and looks at what JSON peers see."""
    owner, early, late = binary(), binary(), binary("ws")
    fetches = [(early, early.fetch(start, **named))]
    for path, value in (
        ("a/1", js(1)),
        ("a/2", js(2)),
        ("b/3", js(3)),
        ("b/4", text("vier")),
        ("b/5", Value(OCTETS, b"5")),
    ):
        owner.add_state(path, value)
    owner.add_method("c/6")
    fetches.append((late, late.fetch(start, **named)))
    for fetcher, fetch_id in fetches:
        found = [received for received in fetcher.everything() if isinstance(received, FetchEvent)]
        expected = [*paths, "c/6"] if named == {} else paths
        assert [(received.fetch_id, received.event, received.path) for received in found] == [
            (fetch_id, "add", path) for path in expected
        ]


@pytest.mark.parametrize("function", [FETCH, GET])
def test_two_starts(binary: Connect, function: int) -> None:
    """A startsWith in the options beside one that is not empty is refused."""
    refusal = binary().refused(function, key("a/") + options({"path": {"startsWith": "b/"}}))
    assert (refusal[:2], refusal.reason) == ((-32602, "Invalid params"), "invalidRule")


@pytest.mark.parametrize(
    "named",
    [
        {"path": {"near": "x"}},
        {"path": {"startsWith": 1}},
        {"path": "a/"},
        {"value": {"lessThan": []}},
        {"value": 5},
        {"sort": {"byValue": "number", "byPath": True, "from": "x"}},
        {"sort": 1},
    ],
    ids=repr,
)
def test_wrong_rules(binary: Connect, named: dict[str, Any]) -> None:
    """A rule that is wrong is refused and nothing is fetched."""
    peer = binary()
    refusal = peer.refused(FETCH, key("") + options(named))
    assert refusal[:2] == (-32602, "Invalid params")
    assert refusal.reason in ("invalidRule", "wrongType")
    peer.add_state("wrong/s", js(1))
    assert peer.everything() == []


def test_value_rule(binary: Connect) -> None:
    """With a value rule a fetch is told what starts and stops matching, whatever the value's type."""
    owner, fetcher = binary(), binary()
    owner.add_state("v/s", js(5))
    fetch_id = fetcher.fetch("v/", value={"lessThan": 10})
    values = [js(6), js(60), js(61), js(7), text("7"), Value(OCTETS, b"\x01"), js(b"8.0"), js(b"1e1")]
    for value in values:
        owner.notify("v/s", value)
    owner.barrier()
    assert fetcher.everything() == events(
        fetch_id,
        ("add", "v/s", js(5)),
        ("change", "v/s", js(6)),
        ("remove", "v/s", js(60)),
        ("add", "v/s", js(7)),
        ("remove", "v/s", text("7")),
        ("add", "v/s", js(b"8.0")),
        ("remove", "v/s", js(b"1e1")),
    )


# Sorted fetches.


def test_sorted(binary: Connect) -> None:
    """A sorted fetch is told its window at once, after the response, and whenever it looks different."""
    owner, fetcher = binary(), binary("ws")
    owner.add_state("s/a", js(3))
    owner.add_state("s/b", js(1))
    fetch_id = fetcher.fetch("s/", sort={"byValue": "number", "to": 2})
    assert fetcher.window(fetch_id) == {
        "changes": [{"path": "s/b", "value": 1, "index": 1}, {"path": "s/a", "value": 3, "index": 2}],
        "n": 2,
    }
    owner.add_state("s/c", js(2))
    assert fetcher.window(fetch_id) == {"changes": [{"path": "s/c", "value": 2, "index": 2}], "n": 2}
    owner.notify("s/a", js(9))
    owner.tell(REMOVE_STATE, key("s/c"))
    assert fetcher.window(fetch_id) == {"changes": [{"path": "s/a", "value": 9, "index": 2}], "n": 2}
    owner.tell(REMOVE_STATE, key("s/b"))
    assert fetcher.window(fetch_id) == {"changes": [{"path": "s/a", "value": 9, "index": 1}], "n": 1}
    fetcher.unfetch(fetch_id)
    owner.tell(REMOVE_STATE, key("s/a"))
    owner.barrier()
    assert fetcher.everything() == []


def test_sorted_while_empty(binary: Connect) -> None:
    """A sorted fetch of nothing is told that there is nothing."""
    fetcher = binary()
    fetch_id = fetcher.fetch("none/", sort={})
    assert fetcher.everything() == [SortedNotification(fetch_id, {"changes": [], "n": 0})]


def test_sorted_looks_at_what_json_peers_see(binary: Connect) -> None:
    """Texts are sorted as strings and shown as JSON, other types as mime and base64."""
    owner, fetcher = binary(), binary()
    owner.add_state("s/1", text("b"))
    owner.add_state("s/2", js("a"))
    owner.add_state("s/3", Value(PNG, b"\x89PNG"))
    owner.add_state("s/4", js(1))
    by_value = fetcher.fetch("s/", sort={"byValue": "string"})
    assert fetcher.window(by_value) == {
        "changes": [{"path": "s/2", "value": "a", "index": 1}, {"path": "s/1", "value": "b", "index": 2}],
        "n": 2,
    }
    by_path = fetcher.fetch("s/", sort={"byPath": True, "from": 3, "to": 3})
    png = {"mime": "image/png", "base64": "iVBORw=="}
    assert fetcher.window(by_path) == {"changes": [{"path": "s/3", "value": png, "index": 3}], "n": 1}


def test_sorted_and_plain_together(binary: Connect) -> None:
    """A sorted and a plain fetch of one peer are told by their own ids."""
    owner, fetcher = binary(), binary()
    plain, by_path = fetcher.fetch("p/"), fetcher.fetch("p/", sort={"byPath": True})
    fetcher.window(by_path)
    owner.add_state("p/s", js(1))
    assert fetcher.received(plain, 1) == events(plain, ("add", "p/s", js(1)))
    assert fetcher.window(by_path) == {"changes": [{"path": "p/s", "value": 1, "index": 1}], "n": 1}


# Slow readers.


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("owned_by", ["binary", "JSON"])
def test_slow_reader(shared_daemons: StartDaemon, every: bool, owned_by: str) -> None:
    """A peer that reads too slowly is told only the newest change of a path, unless it asked for every one."""
    daemon = shared_daemons("--outbox-soft-bytes", "20000")
    daemon.await_empty()
    count, padding = 3000, "x" * 1000
    with (
        connect(daemon, "unix", receive_buffer_bytes=4096) as slow,
        connect(daemon) as owner,
        daemon.connect() as json_owner,
    ):
        if owned_by == "binary":
            owner.add_state("slow/s", text("begin"))
        else:
            json_owner.result("add", {"path": "slow/s", "value": "begin"})
        fetch_id = slow.fetch("slow/", **({"every": True} if every else {}))
        for i in range(count):
            if owned_by == "binary":
                owner.notify("slow/s", text(f"{i}{padding}"))
            else:
                json_owner.notify("change", {"path": "slow/s", "value": f"{i}{padding}"})
        owner.barrier()
        json_owner.barrier()
        last = (text if owned_by == "binary" else js)(f"{count - 1}{padding}")
        received = slow.received(fetch_id, 1)
        while received[-1].value != last:
            received += slow.received(fetch_id, 1)
        numbers = [int(change.value.data.strip(b'"').rstrip(b"x")) for change in received[1:]]
    assert numbers == sorted(set(numbers))
    assert (len(numbers) == count) == every
    assert numbers[-1] == count - 1


def test_slow_reader_keeps_a_true_picture(shared_daemons: StartDaemon) -> None:
    """A slow reader may miss changes, but never an add, a remove, their order or the newest value."""
    daemon = shared_daemons("--outbox-soft-bytes", "20000")
    daemon.await_empty()
    rng = random.Random(4)
    with connect(daemon, "tcp", receive_buffer_bytes=4096) as slow, connect(daemon) as owner:
        pictures = [BinaryPicture(slow), BinaryPicture(connect(daemon, "unix", receive_buffer_bytes=4096))]
        owned: set[str] = set()
        for i in range(6000):
            path = f"churn/{rng.randrange(8)}"
            value = packed(text(f"{i} " + "x" * 400))
            if path not in owned:
                owner.tell(ADD_STATE, key(path) + value)
                owned.add(path)
            elif rng.random() < 0.1:
                owner.tell(REMOVE_STATE, key(path))
                owned.remove(path)
            else:
                owner.tell(NOTIFY, key(path) + value)
        owner.barrier()
        for picture in pictures:
            assert set(picture.check()) == owned
        pictures[1].peer.close()


def test_too_slow_is_closed(shared_daemons: StartDaemon) -> None:
    """A peer that wants every change and does not read is closed at the hard limit; the others are not."""
    daemon = shared_daemons("--outbox-soft-bytes", "20000", "--outbox-hard-bytes", "400000")
    daemon.await_empty()
    with connect(daemon, "unix", receive_buffer_bytes=4096) as lazy, connect(daemon) as owner:
        owner.add_state("lazy/s", js(0))
        lazy.fetch("lazy/", every=True)
        owner.send(*(event(NOTIFY, key("lazy/s") + packed(text("x" * 10_000))) for _ in range(300)))
        owner.barrier()
        received, _ = lazy.await_closed()
        assert len(received) < 300


def test_fetches_between_changes(binary: Connect) -> None:
    """A fetch in the midst of a chunk is told the value of that moment, then each later change, once."""
    peer, neighbour = binary(), binary("unix")
    peer.add_state("mid/s", js(0))
    near = neighbour.fetch("mid/")
    first = peer.fetch("mid/")
    change = [event(NOTIFY, key("mid/s") + packed(js(i))) for i in range(7)]
    peer.send(
        *change[1:3],
        request(901, FETCH, key("mid/")),
        *change[3:5],
        request(902, FETCH, key("mid/")),
        change[5],
        request(903, UNFETCH, u32(first)),
        change[6],
    )
    second, third = (int.from_bytes(peer.response(number).payload, "little") for number in (901, 902))
    assert peer.response(903).ok
    peer.barrier()
    for fetch_id, values in ((first, [0, 1, 2, 3, 4, 5]), (second, [2, 3, 4, 5, 6]), (third, [4, 5, 6])):
        received = peer.received(fetch_id, len(values))
        assert [(one.event, one.value.json) for one in received] == list(
            zip(["add"] + ["change"] * len(values), values, strict=False)
        )
    assert peer.everything() == []
    assert [one.value.json for one in neighbour.received(near, 7)] == list(range(7))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_large_values(binary: Connect, transport: str) -> None:
    """A value of megabytes arrives whole, at every fetcher."""
    owner, fetchers = binary(), [binary(transport), binary(transport)]
    value = Value(OCTETS, random.Random(1).randbytes(3_000_000))
    ids = [fetcher.fetch("large/") for fetcher in fetchers]
    owner.add_state("large/s", value)
    owner.notify("large/s", value)
    for fetcher, fetch_id in zip(fetchers, ids, strict=True):
        assert [received.value for received in fetcher.received(fetch_id, 2)] == [value, value]
