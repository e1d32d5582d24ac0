"""Set and call: what the owner is asked, what the requester is answered, and the errors in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.node import DEADLINE_S, JetError, NodeBus, Peer, Transport, Version, event

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from conftest import Daemons
    from interop.conftest import BusOf

pytestmark = pytest.mark.interop

INVALID_PARAMS = -32602
RESPONSE_TIMEOUT = -32001

Request = tuple[str, dict[str, Any]]
REQUESTS: dict[str, Request] = {
    "set": ("set", {"path": "pump/it", "value": 1}),
    "call": ("call", {"path": "pump/it", "args": [1]}),
}
each_request = pytest.mark.parametrize(("op", "args"), REQUESTS.values(), ids=REQUESTS.keys())


def rejection(request: Callable[[], Any]) -> JetError:
    with pytest.raises(JetError) as rejected:
        request()
    return rejected.value


def outcome(request: Future[Any]) -> JetError:
    return rejection(lambda: request.result(DEADLINE_S))


def own(owner: Peer, op: str, handler: str) -> None:
    """Own what a request of `REQUESTS` asks for."""
    if op == "set":
        owner.add_state("pump/it", 0, handler)
    else:
        owner.add_method("pump/it", handler)


# --- set ---


def test_set_reaches_owner_and_fetchers(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A set is handed to the owner's handler; what the owner makes of it is answered and told to fetchers."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_state("pump/speed", 100)
    fetch = client.fetch(("path", "equals", "pump/speed"))
    result = client.set("pump/speed", 120)
    assert result == ({"path": "pump/speed", "value": 120} if version == 3 else True)
    assert owner.asked()["value"] == 120
    assert owner.do("value", path="pump/speed") == 120
    assert fetch.seen(owner) == [
        event(client, "add", "pump/speed", 100),
        event(client, "change", "pump/speed", 120),
    ]


@pytest.mark.parametrize("value", [0, False, "", None, [], {}, 2**53 - 1, "Öl", {"a": [None]}], ids=repr)
def test_set_answers_with_the_value(bus: NodeBus, classic: Version, transport: Transport, value: Any) -> None:
    """With valueAsResult a set is answered with the new value, whatever it is."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_state("pump/speed", 100)
    result = client.set("pump/speed", value, valueAsResult=True)
    assert result == value
    assert type(result) is type(value)
    assert owner.asked()["value"] == value


def test_set_answers_with_the_adapted_value(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """If the owner takes another value than requested, valueAsResult and the fetchers report that value."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_state("pump/speed", 1, "clamp")
    fetch = client.fetch(("path", "equals", "pump/speed"))
    assert client.set("pump/speed", 300, valueAsResult=True) == 100
    assert fetch.seen(owner) == [
        event(client, "add", "pump/speed", 1),
        event(client, "change", "pump/speed", 100),
    ]


def test_set_without_a_change(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """An owner may accept a set without publishing a change."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_state("pump/speed", 1, "quiet")
    fetch = client.fetch(("path", "equals", "pump/speed"))
    assert client.set("pump/speed", 2) is True
    assert fetch.seen(owner) == [event(client, "add", "pump/speed", 1)]


def test_set_answered_later(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """An owner may answer a set when it is ready, with the value it has then."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_state("pump/speed", 1, "later")
    fetch = client.fetch(("path", "equals", "pump/speed"))
    pending = client.begin("set", path="pump/speed", value=5, options={"valueAsResult": True})
    owner.reply(owner.asked(), value=4)
    assert pending.result(DEADLINE_S) == 4
    assert fetch.seen(owner) == [
        event(client, "add", "pump/speed", 1),
        event(client, "change", "pump/speed", 4),
    ]


def test_set_of_a_fetch_only_state(bus: NodeBus, classic: Version, version: Version, transport: Transport) -> None:
    """A state without a set handler is fetch-only: the daemon refuses to set it."""
    owner, client = bus.peer(classic, transport), bus.peer(version, transport)
    owner.add_state("pump/heat", 20, handler=None)
    error = rejection(lambda: client.set("pump/heat", 21))
    if version == 3:
        assert (error.code, error.data) == (INVALID_PARAMS, {"fetchOnly": "pump/heat"})
    else:
        assert error.kind == "FetchOnly"


# --- call ---


ARGUMENTS: list[Any] = [[], [1, "two", None, {"3": [4]}], {}, {"speed": 5, "unit": "rpm"}, ["ж" * 70_000]]


@pytest.mark.parametrize("args", ARGUMENTS, ids=["none", "mixed", "empty", "named", "long"])
def test_call_hands_over_its_arguments(bus: NodeBus, classic: Version, transport: Transport, args: Any) -> None:
    """A call brings its arguments to the owner and the owner's result back, unchanged."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_method("pump/echo", "echo")
    assert client.call("pump/echo", args) == args
    assert owner.asked()["value"] == args


@pytest.mark.parametrize("value", [0, False, "", None, [], {}, 1 - 2**53, 0.5, "Öl"], ids=repr)
def test_call_result_may_be_anything(bus: NodeBus, classic: Version, transport: Transport, value: Any) -> None:
    """The result of a call is what the owner answers, also false, null or empty."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_method("pump/first", "first")
    result = client.call("pump/first", [value])
    assert result == value
    assert type(result) is type(value)


def test_call_without_a_result(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A method that returns nothing answers an empty object; node-jet 3 methods always do."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_method("pump/start")
    assert client.call("pump/start", ["now"]) == {}
    assert owner.asked()["value"] == ["now"]


def test_call_without_arguments_from_node_jet_3(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A node-jet 3 call without arguments brings an empty object, and to a node-jet 3 owner nothing."""
    owner, client = bus.peer(version, transport), bus.peer(3, transport)
    owner.add_method("pump/start")
    assert client.call("pump/start") == {}
    assert owner.asked().get("value") == (None if version == 3 else {})


def test_call_answered_later(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """An owner may answer a call when it is ready."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_method("pump/start", "later")
    pending = client.begin("call", path="pump/start", args=[1])
    owner.reply(owner.asked(), result={"started": True})
    assert pending.result(DEADLINE_S) == {"started": True}


# --- both ---


@each_request
def test_requests_are_answered_in_any_order(
    bus: NodeBus, classic: Version, transport: Transport, op: str, args: dict[str, Any]
) -> None:
    """Answers in another order find their requests, also across requesters with equal ids."""
    owner = bus.peer(classic, transport)
    clients = [bus.peer(classic, transport) for _ in range(3)]
    own(owner, op, "later")
    pending, asked = [], []
    for number in range(6):
        payload = {"value": number} if op == "set" else {"args": [number]}
        pending.append(clients[number % 3].begin(op, **{**args, **payload}, options={"valueAsResult": True}))
        asked.append(owner.asked())
    for number in (3, 0, 5, 1, 4, 2):
        owner.reply(asked[number], value=number * 10, result=number * 10)
    assert [request.result(DEADLINE_S) for request in pending] == [0, 10, 20, 30, 40, 50]


@each_request
def test_many_requests_in_flight(
    bus: NodeBus, version: Version, transport: Transport, op: str, args: dict[str, Any]
) -> None:
    """A hundred requests at once reach the owner in their order and are all answered."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    own(owner, op, "accept")
    payloads: list[dict[str, Any]] = [{"value": n} if op == "set" else {"args": [n]} for n in range(100)]
    pending = [client.begin(op, **{**args, **payload}) for payload in payloads]
    for request in pending:
        request.result(DEADLINE_S)
    assert [owner.asked()["value"] for _ in pending] == [next(iter(payload.values())) for payload in payloads]


@each_request
def test_a_request_may_be_a_notification(
    bus: NodeBus, classic: Version, transport: Transport, op: str, args: dict[str, Any]
) -> None:
    """A set or call that skips its result reaches the owner and is not answered."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    own(owner, op, "accept")
    client.info()
    frames = len(client.frames)
    client.do(op, **args, options={"skipResult": True})
    assert owner.asked()["path"] == "pump/it"
    owner.info()
    client.info()
    assert len(client.frames) == frames + 3, "the notification, an info and its answer"


@each_request
def test_refused_by_the_owner(
    bus: NodeBus, version: Version, transport: Transport, op: str, args: dict[str, Any]
) -> None:
    """An owner's InvalidArgument is the requester's InvalidArgument, with its text; nothing is published."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    own(owner, op, "refuse")
    fetch = client.fetch(("path", "equals", "pump/it"))
    fetch.seen()
    error = rejection(lambda: client.do(op, **args))
    if version == 3:
        assert error.code == INVALID_PARAMS
        assert error.message == ("Failed to set value" if op == "set" else "Failed to call method")
    else:
        assert (error.kind, error.message) == ("InvalidArgument", "refused by the owner")
    assert fetch.seen(owner) == []


@each_request
def test_failed_in_the_owner(
    bus: NodeBus, classic: Version, transport: Transport, op: str, args: dict[str, Any]
) -> None:
    """Any other exception of an owner is rejected as PeerError, with its text."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    own(owner, op, "fail")
    error = rejection(lambda: client.do(op, **args))
    assert (error.kind, error.message) == ("PeerError", "broken in the owner")


@each_request
def test_errors_of_the_owners_own(
    bus: NodeBus, classic: Version, transport: Transport, op: str, args: dict[str, Any]
) -> None:
    """An error with a code of the owner's own reaches the requester unchanged."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    own(owner, op, "code")
    error = rejection(lambda: client.do(op, **args))
    assert (error.kind, error.code, error.message, error.data) == (None, 4711, "own code", {"hint": [1]})


@each_request
def test_refused_later(bus: NodeBus, classic: Version, transport: Transport, op: str, args: dict[str, Any]) -> None:
    """An owner that answers late may answer with an error."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    own(owner, op, "later")
    pending = client.begin(op, **args)
    owner.reply(owner.asked(), error="not today")
    error = outcome(pending)
    assert (error.kind, error.message) == ("PeerError", "not today")


@each_request
def test_an_owner_that_does_not_answer(
    bus: NodeBus, classic: Version, transport: Transport, op: str, args: dict[str, Any]
) -> None:
    """A request ends with PeerTimeout after its timeout; the late answer is dropped and harms nobody."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    own(owner, op, "later")
    assert rejection(lambda: client.do(op, **args, options={"timeout": 0.05})).kind == "PeerTimeout"
    late = owner.asked()
    pending = client.begin(op, **args, options={"valueAsResult": True})
    asked = owner.asked()
    owner.reply(late, value="late", result="late")
    owner.reply(asked, value="in time", result="in time")
    assert pending.result(DEADLINE_S) == "in time"


@each_request
def test_the_timeout_of_the_daemon(
    shared_daemons: Daemons, bus_of: BusOf, version: Version, transport: Transport, op: str, args: dict[str, Any]
) -> None:
    """A request that gives no timeout, as all of node-jet 3, has the daemon's."""
    daemon = shared_daemons("--timeout-s", "0.1")
    daemon.await_empty()
    bus = bus_of(daemon)
    owner, client = bus.peer(2, transport), bus.peer(version, transport)
    own(owner, op, "later")
    error = rejection(lambda: client.do(op, **args))
    if version == 3:
        assert error.code == RESPONSE_TIMEOUT
    else:
        assert error.kind == "PeerTimeout"


@each_request
def test_a_path_that_does_not_exist(
    bus: NodeBus, version: Version, transport: Transport, op: str, args: dict[str, Any]
) -> None:
    """A request for a path that nobody owns is rejected as NotFound."""
    error = rejection(lambda: bus.peer(version, transport).do(op, **args))
    if version == 3:
        assert (error.code, error.data) == (INVALID_PARAMS, {"pathNotExists": "pump/it"})
    else:
        assert error.kind == "NotFound"


def test_a_set_needs_a_value(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A set without a value is refused and does not reach the owner."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_state("pump/speed", 1)
    assert rejection(lambda: client.do("set", path="pump/speed")).code == INVALID_PARAMS
    client.set("pump/speed", "first")
    assert owner.asked()["value"] == "first"


@each_request
def test_removal_does_not_cancel_requests(
    bus: NodeBus, classic: Version, transport: Transport, op: str, args: dict[str, Any]
) -> None:
    """A request sent before a removal may be answered after it."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    own(owner, op, "later")
    pending = client.begin(op, **args, options={"valueAsResult": True})
    asked = owner.asked()
    owner.remove("pump/it")
    owner.reply(asked, value="done", result="done")
    assert pending.result(DEADLINE_S) == "done"


def test_a_method_cannot_be_set(bus: NodeBus, version: Version, transport: Transport) -> None:
    """Setting a method is refused and does not reach its owner."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_method("pump/start")
    assert rejection(lambda: client.set("pump/start", 1)).code == INVALID_PARAMS
    client.call("pump/start", ["first"])
    assert owner.asked()["value"] == ["first"]


def test_a_state_cannot_be_called(bus: NodeBus, version: Version, transport: Transport) -> None:
    """Calling a state is refused and does not reach its owner."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_state("pump/speed", 1)
    assert rejection(lambda: client.call("pump/speed", [1])).code == INVALID_PARAMS
    client.set("pump/speed", "first")
    assert owner.asked()["value"] == "first"


# --- add and remove ---


def is_occupied(error: JetError, version: Version, path: str) -> bool:
    if version == 3:
        return (error.code, error.data) == (INVALID_PARAMS, {"pathAlreadyExists": path})
    return error.kind == "Occupied"


@pytest.mark.parametrize("second", ["same peer", "other peer"])
@pytest.mark.parametrize("existing", ["add_state", "add_method"])
def test_an_occupied_path(bus: NodeBus, version: Version, transport: Transport, existing: str, second: str) -> None:
    """A path is given once: a second state or method there is rejected as Occupied and the first goes on."""
    owner = bus.peer(version, transport)
    other = owner if second == "same peer" else bus.peer(version, transport)
    if existing == "add_state":
        owner.add_state("pump/it", 1)
    else:
        owner.add_method("pump/it")
    assert is_occupied(rejection(lambda: other.add_state("pump/it", 2)), version, "pump/it")
    assert is_occupied(rejection(lambda: other.add_method("pump/it")), version, "pump/it")
    if existing == "add_state":
        other.set("pump/it", 3)
    else:
        other.call("pump/it", [3])
    assert owner.asked()["path"] == "pump/it"


@pytest.mark.parametrize(("first", "second"), [("a/b", "a"), ("a/b", "a/b/c")], ids=["node", "leaf"])
def test_a_position_is_a_node_or_a_leaf(
    shared_daemons: Daemons, bus_of: BusOf, version: Version, transport: Transport, first: str, second: str
) -> None:
    """Nothing can be added at a node or below a leaf of a strict tree: it is rejected as Occupied."""
    daemon = shared_daemons("--tree", "strict")
    daemon.await_empty()
    bus = bus_of(daemon)
    owner, other = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_state(first, 1)
    assert is_occupied(rejection(lambda: other.add_state(second, 2)), version, second)
    owner.remove(first)
    other.add_state(second, 2)


def test_a_flat_tree_has_leaves_below_leaves(
    shared_daemons: Daemons, bus_of: BusOf, version: Version, transport: Transport
) -> None:
    """A daemon with a flat tree takes states at and below the path of a state."""
    daemon = shared_daemons("--tree", "flat")
    daemon.await_empty()
    bus = bus_of(daemon)
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    for path in ("a/b", "a", "a/b/c"):
        owner.add_state(path, path)
    assert client.fetch().seen() == [event(client, "add", path, path) for path in ("a/b", "a", "a/b/c")]


def test_removing_twice(bus: NodeBus, version: Version, transport: Transport) -> None:
    """Removing an element twice is an error: NotFound."""
    owner = bus.peer(version, transport)
    owner.add_state("pump/speed", 1)
    owner.remove("pump/speed")
    error = rejection(lambda: owner.remove("pump/speed"))
    if version == 3:
        assert (error.code, error.data) == (INVALID_PARAMS, {"pathNotExists": "pump/speed"})
    else:
        assert error.kind == "NotFound"


def test_removing_what_others_own(bus: NodeBus, version: Version, transport: Transport) -> None:
    """Only its owner removes a state."""
    owner, other = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_state("pump/speed", 1)
    rejection(lambda: other.add_state("pump/speed", 2))
    error = rejection(lambda: other.remove("pump/speed"))
    assert (error.code, error.data) == (INVALID_PARAMS, {"foreignPath": "pump/speed"})
    assert [found["value"] for found in other.get(path={"equals": "pump/speed"})] == [1]


# --- batches ---


def test_a_batch_is_done_in_order(bus: NodeBus, version: Version, transport: Transport) -> None:
    """The requests of a batch are done in order, each with its own outcome; a failure does not stop the rest."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    fetch = client.fetch(("path", "startsWith", "pump/"))
    frames = len(owner.frames)
    outcomes = owner.do(
        "batch",
        steps=[
            {"op": "addState", "path": "pump/a", "value": 1, "handler": "accept"},
            {"op": "addState", "path": "pump/a", "value": 2, "handler": "accept"},
            {"op": "addState", "path": "pump/b", "value": 3, "handler": "accept"},
            {"op": "set", "path": "pump/c", "value": 4},
            {"op": "get", "expression": {"path": {"startsWith": "pump/"}}},
        ],
    )
    assert [sorted(done) for done in outcomes] == [["result"], ["error"], ["result"], ["error"], ["result"]]
    assert [done["error"]["kind"] or done["error"]["code"] for done in outcomes if "error" in done] == (
        [INVALID_PARAMS, INVALID_PARAMS] if version == 3 else ["Occupied", "NotFound"]
    )
    assert [found["path"] for found in outcomes[4]["result"]] == ["pump/a", "pump/b"]
    assert fetch.seen(owner) == [event(client, "add", "pump/a", 1), event(client, "add", "pump/b", 3)]
    if version == 3:
        assert owner.frames[frames].startswith("sent     [{"), "node-jet 3 sends a batch as one frame"
