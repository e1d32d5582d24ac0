"""Behaviour of both peers, each case once for either face and for each way to connect."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import jetbus
from jetbus import SetResult
from jetbus.peer import connection
from jetbus.testing import running_daemon
from support.listener import listening
from support.peers import PeerFactory, Twin, brief, raised, run, until

ADAPTED = 1


@pytest.fixture
def bus(schemed: PeerFactory) -> PeerFactory:
    return schemed


# An owner's states.


def test_state_lives(bus: PeerFactory) -> None:
    """A state is added, changed, removed and added again with its newest value."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("pump/speed", 1)
            assert (state.path, state.value, state.added) == ("pump/speed", 1, True)
            assert await client.get_all() == {"pump/speed": 1}
            await state.change({"rpm": 2})
            assert state.value == {"rpm": 2}
            await client.wait_for(fields={"rpm": 2}, timeout_s=20)
            await state.remove()
            assert not state.added
            assert await client.get_all() == {}
            await state.change(3)
            await state.add()
            assert await client.get_all() == {"pump/speed": 3}

    run(case())


def test_owner_leaves(bus: PeerFactory) -> None:
    """Elements of a peer leave the bus when it closes."""

    async def case() -> None:
        async with bus.peer() as client:
            async with bus.peer() as owner:
                await owner.add_state("pump/speed", 1)
                fetch = await client.fetch()
                assert brief(await fetch.take(1)) == [("add", "pump/speed", 1)]
            assert brief(await fetch.take(1)) == [("remove", "pump/speed", 1)]

    run(case())


def test_without_on_set_a_state_is_read_only(daemon_bus: PeerFactory) -> None:
    """A state without on_set refuses every set, and fetches tell so."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            await owner.add_state("pump/speed", 1)
            refused = await raised(client.set("pump/speed", 2))
            assert isinstance(refused, jetbus.ReadOnly)
            assert refused.path == "pump/speed"
            assert (await client.wait_for("pump/speed")).fetch_only

    run(case())


def _at_most_ten(value: int) -> int:
    return min(value, 10)


async def _at_most_ten_later(value: int) -> int:
    await asyncio.sleep(0)
    return min(value, 10)


ON_SET: dict[str, tuple[Callable[[Any], Any], Any, SetResult, Any]] = {
    "accept": (lambda _value: None, 7, SetResult(7), 7),
    "accept null": (lambda _value: None, None, SetResult(), None),
    "accept by the same value": (_at_most_ten, 7, SetResult(7), 7),
    "adapt": (_at_most_ten, 70, SetResult(10, ADAPTED), 10),
    "adapt to null": (lambda _value: jetbus.Adapted(None), 7, SetResult(warning_code=ADAPTED), None),
    "adapt with a message": (
        lambda _value: jetbus.Adapted(10, "10 is the limit"),
        70,
        SetResult(10, ADAPTED, "10 is the limit"),
        10,
    ),
    "accept unchanged": (lambda _value: jetbus.UNCHANGED, 7, SetResult(1), 1),
    "accept later": (_at_most_ten_later, 7, SetResult(7), 7),
    "adapt later": (_at_most_ten_later, 70, SetResult(10, ADAPTED), 10),
}


@pytest.mark.parametrize(("on_set", "asked", "answer", "after"), ON_SET.values(), ids=ON_SET)
def test_on_set(
    daemon_bus: PeerFactory, on_set: Callable[[Any], Any], asked: Any, answer: SetResult, after: Any
) -> None:
    """The result of on_set, also of an asynchronous one, decides the response and the value."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            state = await owner.add_state("pump/speed", 1, on_set=on_set)
            assert await client.set("pump/speed", asked) == answer
            assert answer.adapted is (answer.warning_code == ADAPTED)
            assert state.value == after
            assert await client.get_all() == {"pump/speed": after}

    run(case())


def _raise(problem: Exception) -> Callable[..., Any]:
    def handler(*_args: Any) -> None:
        raise problem

    return handler


def _raise_later(problem: Exception) -> Callable[..., Any]:
    async def handler(*_args: Any) -> None:
        await asyncio.sleep(0)
        raise problem

    return handler


def _argument(text: str) -> dict[str, Any]:
    return {"invalidArgument": {"name": "jet.InvalidArgument", "message": text}}


def _internal(text: str) -> dict[str, Any]:
    return {"reason": text, "message": text}


REFUSALS: dict[str, tuple[Exception, type[Exception], int, str, Any]] = {
    "Refused": (
        jetbus.Refused("too hot", {"limit": 80}, code=-7),
        jetbus.Refused,
        -7,
        "too hot",
        {"limit": 80},
    ),
    "Refused without code": (jetbus.Refused("too hot"), jetbus.Refused, -32602, "too hot", None),
    "Refused with data that is no JSON": (
        jetbus.Refused("too hot", object()),
        jetbus.Refused,
        -32603,
        "Internal error",
        _internal("too hot; cannot encode its data as JSON: Encoding objects of type object is unsupported"),
    ),
    "ValueError": (ValueError("not so fast"), jetbus.Refused, -32602, "Invalid params", _argument("not so fast")),
    "another error of the bus": (
        jetbus.NotFound("motor/speed"),
        jetbus.NotFound,
        -32602,
        "Invalid params",
        {"pathNotExists": "motor/speed"},
    ),
    "an error of the bus without data": (
        jetbus.NotConnected("no motor"),
        jetbus.Refused,
        -32603,
        "Internal error",
        _internal("NotConnected: no motor"),
    ),
    "any exception": (
        RuntimeError("broken"),
        jetbus.Refused,
        -32603,
        "Internal error",
        _internal("RuntimeError: broken"),
    ),
    "a fault in the handler": (
        KeyError("no such thing"),
        jetbus.Refused,
        -32603,
        "Internal error",
        _internal("KeyError: 'no such thing'"),
    ),
}


@pytest.mark.parametrize("raising", [_raise, _raise_later], ids=["at once", "later"])
@pytest.mark.parametrize(("problem", "kind", "code", "message", "data"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(
    daemon_bus: PeerFactory,
    raising: Callable[[Exception], Callable[..., Any]],
    problem: Exception,
    kind: type[Exception],
    code: int,
    message: str,
    data: Any,
) -> None:
    """Errors of a handler reach the caller with code, message and data, and the state keeps its value."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            state = await owner.add_state("pump/speed", 1, on_set=raising(problem))
            await owner.add_method("pump/start", raising(problem))
            for asking in (client.set("pump/speed", 2), client.call("pump/start")):
                refused = await raised(asking)
                assert type(refused) is kind
                assert isinstance(refused, jetbus.JetError)
                received = refused.wire()
                assert (received["code"], received["message"], received.get("data")) == (code, message, data)
            assert state.value == 1

    run(case())


@pytest.fixture
def daemon_bus(face: str) -> Any:
    """A bus by TCP only, for cases that the way to connect has no part in."""
    with running_daemon() as daemon:
        yield PeerFactory(daemon.url, face)


def test_answer_that_is_no_json(daemon_bus: PeerFactory) -> None:
    """A handler whose outcome cannot be told as JSON is answered for with that, and nothing else is hurt."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            state = await owner.add_state("pump/speed", 1, on_set=lambda _value: object())
            await owner.add_method("pump/start", object)
            for asking in (client.set("pump/speed", 2), client.call("pump/start")):
                refused = await raised(asking)
                assert isinstance(refused, jetbus.Refused)
                assert refused.own_code == -32603
                assert "cannot encode the result as JSON" in refused.data["message"]
            assert isinstance(await raised(state.change(object())), TypeError)
            assert state.value == 1
            assert await client.get_all() == {"pump/speed": 1}

    run(case())


def test_answers_overtake_each_other(bus: PeerFactory) -> None:
    """A handler that answers later holds up nobody else."""
    go = threading.Event()

    async def wait(value: Any) -> Any:
        if value == "slow":
            await asyncio.to_thread(go.wait)
        return None

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state("pump/speed", 0, on_set=wait)
            slow = asyncio.ensure_future(client.set("pump/speed", "slow"))
            await until(lambda: client.open_request_count == 1)
            await client.set("pump/speed", "quick")
            assert not slow.done()
            go.set()
            assert await slow == SetResult("slow")
            assert await client.get_all() == {"pump/speed": "slow"}

    run(case())


def test_change_comes_before_the_answer(bus: PeerFactory) -> None:
    """Whoever sets and fetches sees the change before the answer to the set."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state("pump/speed", 0, on_set=lambda value: value * 2)
            mirror = await client.mirror("pump/*")
            await mirror.ready()
            for value in range(1, 20):
                await client.set("pump/speed", value)
                assert mirror.inner["pump/speed"] == value * 2

    run(case())


def test_no_reply(daemon_bus: PeerFactory) -> None:
    """A set and a call with no_reply are carried out in order and answered by nobody, refusals included."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            calls: list[Any] = []
            state = await owner.add_state("pump/speed", 0, on_set=_at_most_ten)
            await owner.add_method("pump/log", lambda *words: calls.append(words))
            assert await client.set("pump/speed", 7, no_reply=True) is None
            assert await client.call("pump/log", "one", b"two", no_reply=True) is None
            assert await client.set("no/such/state", 1, no_reply=True) is None
            assert await client.call("pump/speed", no_reply=True) is None
            assert client.inner.open_request_count == 0
            # Requests of one peer are handled in order, so this is after all of them.
            await client.call("pump/log", "last")
            assert state.value == 7
            assert calls == [("one", b"two"), ("last",)]

    run(case())


def test_no_reply_has_no_options_of_the_answer(daemon_bus: PeerFactory) -> None:
    """Options about the answer are an error together with no_reply, and a lost connection is reported."""

    async def case() -> None:
        async with daemon_bus.peer() as client:
            with pytest.raises(TypeError, match="leave out timeout_s and value_as_result"):
                await client.set("a", 1, no_reply=True, timeout_s=0, value_as_result=True)
            with pytest.raises(TypeError, match="leave out timeout_s"):
                await client.call("a", no_reply=True, timeout_s=1)
        with pytest.raises(jetbus.NotConnected):
            await client.set("a", 1, no_reply=True)
        with pytest.raises(jetbus.NotConnected):
            await client.call("a", no_reply=True)

    run(case())


def test_value_as_result(daemon_bus: PeerFactory) -> None:
    """A set can be answered with the value that came of it."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            await owner.add_state("pump/speed", 0, on_set=_at_most_ten)
            assert await client.set("pump/speed", 70, value_as_result=True) == SetResult(10)
            assert await client.set("pump/speed", 7, value_as_result=True) == SetResult(7)

    run(case())


class Reading(msgspec.Struct):
    celsius: float
    unit: str = "C"


@dataclasses.dataclass
class Place:
    room: int
    shelf: str = "top"


TYPED: dict[str, tuple[Any, Any, Any, Any, str]] = {
    "struct": (Reading, {"celsius": 1.5}, Reading(1.5), {"celsius": "hot"}, "`$.celsius`"),
    "dataclass": (Place, {"room": 2}, Place(2), {"room": 2, "shelf": 3}, "`$.shelf`"),
    "plain": (int, 7, 7, "seven", "int"),
    "list": (list[int], [1, 2], [1, 2], [1, "2"], "`$[1]`"),
    "choice": (int | None, None, None, "none", "int | null"),
}


@pytest.mark.parametrize(("kind", "fine", "read", "bad", "named"), TYPED.values(), ids=TYPED)
def test_typed_state(daemon_bus: PeerFactory, kind: Any, fine: Any, read: Any, bad: Any, named: str) -> None:
    """A typed state gives on_set the value as that type, and refuses what does not fit with the field's name."""
    asked: list[Any] = []

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            state = await owner.add_state("room/1", read, on_set=asked.append, type=kind)
            await client.set("room/1", fine)
            assert asked == [read]
            assert state.value == read
            refused = await raised(client.set("room/1", bad))
            assert isinstance(refused, jetbus.Refused)
            assert named in refused.data["invalidArgument"]["message"]
            assert asked == [read]

    run(case())


# An owner's methods.


@pytest.mark.parametrize(
    "result",
    [None, True, False, 0, -1.5, "", "grün", [], [1, [2]], {}, {"a": {"b": None}}],
    ids=json.dumps,
)
def test_method_results(daemon_bus: PeerFactory, result: Any) -> None:
    """A method gives back any JSON."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            await owner.add_method("echo", lambda one: one)
            assert await client.call("echo", result) == result

    run(case())


def _describe(path: str, size: int = 1, *, loud: bool = False) -> list[Any]:
    return [path, size, loud]


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], list[Any]]] = {
    "positional": (("a",), {}, ["a", 1, False]),
    "all positional": (("a", 2), {}, ["a", 2, False]),
    "keywords": ((), {"path": "a", "loud": True}, ["a", 1, True]),
}


@pytest.mark.parametrize(("args", "keywords", "result"), CALLS.values(), ids=CALLS)
def test_method_arguments(
    daemon_bus: PeerFactory, args: tuple[Any, ...], keywords: dict[str, Any], result: list[Any]
) -> None:
    """Positional and keyword arguments reach the method as they were given."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            await owner.add_method("describe", _describe)
            assert await client.call("describe", *args, **keywords) == result

    run(case())


WRONG_CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "missing": ((), {}, "missing a required argument: 'path'"),
    "too many": ((1, 2, 3), {}, "too many positional arguments"),
    "unexpected": ((), {"path": "a", "colour": 1}, "got an unexpected keyword argument 'colour'"),
}


@pytest.mark.parametrize(("args", "keywords", "wrong"), WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_wrong_calls(daemon_bus: PeerFactory, args: tuple[Any, ...], keywords: dict[str, Any], wrong: str) -> None:
    """A call that does not fit the signature is answered with what was wrong and how it should be."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            await owner.add_method("describe", _describe)
            refused = await raised(client.call("describe", *args, **keywords))
            assert isinstance(refused, jetbus.Refused)
            assert refused.own_code == -32602
            text = refused.data["invalidArgument"]["message"]
            assert wrong in text
            assert "path: " in text

    run(case())


def test_call_takes_one_kind_of_arguments(daemon_bus: PeerFactory) -> None:
    """Positional and keyword arguments cannot be mixed, as JSON has no form for it."""

    async def case() -> None:
        async with daemon_bus.peer() as client:
            assert isinstance(await raised(client.call("describe", 1, loud=True)), TypeError)

    run(case())


def test_asynchronous_method(daemon_bus: PeerFactory) -> None:
    """A method may be asynchronous."""

    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            await owner.add_method("add", add)
            assert await client.call("add", 1, 2) == 3

    run(case())


def test_decorators(daemon_bus: PeerFactory) -> None:
    """States and methods can be made by decorators; a method stays callable."""

    async def case() -> None:
        async with daemon_bus.peer() as owner:
            speed = await owner.do(lambda: owner.inner.state("pump/speed", 1)(_at_most_ten))
            add = await owner.do(lambda: owner.inner.method("pump/add")(lambda a, b: a + b))
            assert await owner.set("pump/speed", 70) == SetResult(10, ADAPTED)
            assert await owner.call("pump/add", 1, 2) == 3
            assert speed.value == 10
            assert add.inner(3, 4) == 7

    run(case())


# Batches.


def test_batch_is_one_message(face: str) -> None:
    """A batch goes out as one message; a single message needs no array."""

    async def case() -> None:
        async with listening() as daemon:
            bus = PeerFactory(daemon.url, face)
            async with bus.peer() as owner:
                state = await owner.add_state("pump/speed", 0)
                daemon.heard.clear()

                def change(*values: int) -> None:
                    with owner.inner.batch():
                        for value in values:
                            state.inner.change(value)

                for values in ((), (1,), (2, 3)):
                    await owner.do(lambda values=values: change(*values))
                await owner.info()
                assert daemon.heard == [
                    {"method": "change", "params": {"path": "pump/speed", "value": 1}},
                    [{"method": "change", "params": {"path": "pump/speed", "value": value}} for value in (2, 3)],
                    {"id": daemon.heard[-1]["id"], "method": "info", "params": {}},
                ]

    run(case())


def test_batch_arrives(bus: PeerFactory) -> None:
    """A daemon takes a batch apart in order."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            states = [await owner.add_state(f"pump/{number}", 0) for number in range(3)]
            fetch = await client.fetch(policy="every")
            await fetch.take(3)

            def change() -> None:
                with owner.inner.batch():
                    for round_ in (1, 2):
                        for state in states:
                            state.inner.change(round_)

            await owner.do(change)
            assert brief(await fetch.take(6)) == [
                ("change", f"pump/{number}", round_) for round_ in (1, 2) for number in range(3)
            ]

    run(case())


def test_requests_in_a_batch() -> None:
    """Requests of PeerAsync go into a batch as well and are answered after it."""

    async def case() -> None:
        with running_daemon() as daemon:
            async with jetbus.PeerAsync(daemon.url) as peer:
                await peer.add_method("add", lambda a, b: a + b)
                with peer.batch():
                    answers = [peer.call("add", number, 1) for number in range(3)]
                assert await asyncio.gather(*answers) == [1, 2, 3]

    run(case())


@pytest.mark.parametrize("waiting", ["set", "call", "get", "info", "add", "close"])
def test_waiting_in_a_batch_is_refused(waiting: str) -> None:
    """A blocking call inside a batch would wait for ever, so it is refused at once."""
    with running_daemon() as daemon, jetbus.Peer(daemon.url) as peer:
        state = peer.add_state("pump/speed", 0)
        calls: dict[str, Callable[[], Any]] = {
            "set": lambda: peer.set("pump/speed", 1),
            "call": lambda: peer.call("pump/start"),
            "get": peer.get_all,
            "info": peer.info,
            "add": lambda: peer.add_state("pump/heat"),
            "close": peer.close,
        }
        with peer.batch():
            state.change(1)
            with pytest.raises(RuntimeError, match="batch is sent when its block ends"):
                calls[waiting]()
        assert peer.get_all() == {"pump/speed": 1}


def test_batches_do_not_nest(daemon_bus: PeerFactory) -> None:
    """A batch inside a batch is a mistake that is named."""

    async def case() -> None:
        async with daemon_bus.peer() as owner:

            def nest() -> None:
                with owner.inner.batch(), owner.inner.batch():
                    pass

            problem = await raised(owner.do(nest))
            assert isinstance(problem, RuntimeError)
            assert "do not nest" in str(problem)

    run(case())


# A client.

GETS: dict[str, tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]] = {
    "everything": ((), {}, {"a/x": 1, "a/y": 9, "b/x": 5, "b/c/x": 7}),
    "text": (("a/**",), {}, {"a/x": 1, "a/y": 9}),
    "glob": (("*/x",), {}, {"a/x": 1, "b/x": 5}),
    "value": (("** value>4",), {}, {"a/y": 9, "b/x": 5, "b/c/x": 7}),
    "keywords": ((), {"starts_with": "a/", "value": jetbus.above(4)}, {"a/y": 9}),
    "Rule": ((jetbus.rule(ends_with="/x"),), {}, {"a/x": 1, "b/x": 5, "b/c/x": 7}),
    "text and keywords": (("** value>4",), {"ends_with": "/x"}, {"b/x": 5, "b/c/x": 7}),
    "sorted": ((), {"sort_by": "value", "descending": True, "last": 2}, {"a/y": 9, "b/c/x": 7}),
    "sorted glob": (("*/x",), {"sort_by": "value", "descending": True, "last": 1}, {"b/x": 5}),
}


@pytest.mark.parametrize(("args", "keywords", "found"), GETS.values(), ids=GETS)
def test_get(daemon_bus: PeerFactory, args: tuple[Any, ...], keywords: dict[str, Any], found: dict[str, Any]) -> None:
    """Get takes a rule as text, keywords or Rule and gives the states that match, in order; methods have no value."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            for path, value in (("a/x", 1), ("a/y", 9), ("b/x", 5), ("b/c/x", 7)):
                await owner.add_state(path, value)
            await owner.add_method("a/method", print)
            assert list((await client.get_all(*args, **keywords)).items()) == list(found.items())

    run(case())


def test_info(daemon_bus: PeerFactory) -> None:
    """The daemon tells its name, version and features."""

    async def case() -> None:
        async with daemon_bus.peer() as client:
            received = await client.info()
            assert (received["name"], received["features"]["fetch"]) == ("jetbus", "full")

    run(case())


async def _names(peer: Twin) -> set[str]:
    return {value["name"] for value in (await peer.get_all(starts_with="$jet/peers/")).values()}


def test_name(bus: PeerFactory) -> None:
    """A peer's name is seen on the bus, whether given at the start or configured later."""

    async def case() -> None:
        async with bus.peer(name="first") as one, bus.peer() as other:
            await other.config(name="second")
            assert await _names(one) >= {"first", "second"}
            assert (one.name if not one.blocking else "first", other.connected) == ("first", True)

    run(case())


@pytest.fixture
def guarded(face: str, tmp_path: Path) -> Any:
    """A bus with users."""
    groups = {"fetchGroups": ["plant"], "setGroups": ["plant"], "callGroups": ["plant"]}
    users = tmp_path / "users.json"
    users.write_text(json.dumps({"users": {"ann": {"password": "secret", "auth": groups}}}))
    with running_daemon(users=users) as daemon:
        yield PeerFactory(daemon.url, face)


ACCESS = {"fetchGroups": ["plant"], "setGroups": ["plant"], "callGroups": ["plant"]}


def test_authenticate(guarded: PeerFactory) -> None:
    """A login by options, url or authenticate gives the rights of the user's groups; others have none."""

    async def case() -> None:
        with_user = guarded.url.replace("jet://", "jet://ann:secret@")
        async with guarded.peer(user="ann", password="secret") as owner, guarded.peer() as client:
            await owner.add_state("pump/speed", 1, on_set=lambda _value: None, access=ACCESS)
            assert await client.get_all() == {}
            assert isinstance(await raised(client.set("pump/speed", 2)), jetbus.NotAllowed | jetbus.NotFound)
            assert await client.authenticate("ann", "secret") == ACCESS
            assert await client.get_all() == {"pump/speed": 1}
            await client.set("pump/speed", 2)
            by_url = guarded.make(with_user)
            await by_url.connect()
            assert await by_url.get_all() == {"pump/speed": 2}
            assert "secret" not in by_url.url
            await by_url.close()

    run(case())


def test_login_is_refused(guarded: PeerFactory) -> None:
    """A wrong user or password is refused by name, at connect and later; nothing is left connected."""

    async def case() -> None:
        for user, password in (("ann", "wrong"), ("bob", "secret")):
            stranger = guarded.make(user=user, password=password)
            assert isinstance(await raised(stranger.connect()), jetbus.LoginRefused)
            assert not stranger.connected
            async with guarded.peer() as client:
                assert isinstance(await raised(client.authenticate(user, password)), jetbus.LoginRefused)

    run(case())


def test_authenticate_comes_first(guarded: PeerFactory) -> None:
    """After the first fetch it is too late to log in."""

    async def case() -> None:
        async with guarded.peer() as client:
            await client.mirror()
            assert isinstance(await raised(client.authenticate("ann", "secret")), jetbus.AlreadyFetching)

    run(case())


def test_wait_for(bus: PeerFactory) -> None:
    """Wait for something to appear, or to have a value, however much later."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            waiting = asyncio.ensure_future(client.wait_for("pump/speed value>5"))
            await until(lambda: client.inner.session.fetches)
            state = await owner.add_state("pump/speed", 1)
            await state.change(7)
            event = await waiting
            assert (event.kind, event.path, event.value) == ("add", "pump/speed", 7)
            assert (await client.wait_for(starts_with="pump/")).value == 7

    run(case())


def test_wait_for_times_out(daemon_bus: PeerFactory) -> None:
    """Waiting has a limit, if one was given."""

    async def case() -> None:
        async with daemon_bus.peer() as client:
            problem = await raised(client.wait_for("pump/speed", timeout_s=0.01))
            assert isinstance(problem, jetbus.TimedOut)
            assert "nothing on the bus matched pump/speed" in str(problem)
            assert problem.path == "pump/speed"

    run(case())


# Fetches.


def test_fetch(bus: PeerFactory) -> None:
    """A fetch tells what is there and all that happens, until it is closed."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            one = await owner.add_state("pump/1", 1)
            await owner.add_state("other", 1)
            fetch = await client.fetch("pump/**")
            assert brief(await fetch.take(1)) == [("add", "pump/1", 1)]
            await one.change(2)
            assert brief(await fetch.take(1)) == [("change", "pump/1", 2)]
            method = await owner.add_method("pump/start", print)
            assert await fetch.take(1) == [jetbus.Event("add", "pump/start", is_method=True)]
            await method.remove()
            await one.remove()
            assert brief(await fetch.take(2)) == [("remove", "pump/start", None), ("remove", "pump/1", 2)]
            await fetch.close()
            await owner.add_state("pump/2", 2)
            assert await fetch.rest() == []

    run(case())


def test_fetch_every_event(bus: PeerFactory) -> None:
    """With policy every, each event is told, in order."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("pump/1", 0, on_set=lambda _value: None)
            fetch = await client.fetch("pump/**", policy="every")
            await fetch.ready()
            for value in (None, {"a": 1}, [2], "x"):
                await state.change(value)
            method = await owner.add_method("pump/start", print)
            await method.remove()
            await state.remove()
            assert await fetch.take(8) == [
                jetbus.Event("add", "pump/1", 0),
                jetbus.Event("change", "pump/1", None),
                jetbus.Event("change", "pump/1", {"a": 1}),
                jetbus.Event("change", "pump/1", [2]),
                jetbus.Event("change", "pump/1", "x"),
                jetbus.Event("add", "pump/start", is_method=True),
                jetbus.Event("remove", "pump/start", is_method=True),
                jetbus.Event("remove", "pump/1", "x"),
            ]
            assert fetch.conflated == 0

    run(case())


def test_fetch_with_callback(bus: PeerFactory) -> None:
    """A callback gets the events; one that fails hurts neither the fetch nor the connection."""
    received: list[Any] = []

    def callback(event: jetbus.Event) -> None:
        received.append(event)
        if event.value == "bad":
            raise RuntimeError("the callback does not like it")

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("pump/1", 0)
            fetch = await client.fetch("pump/**", callback, policy="every")
            await fetch.ready()
            for value in (1, "bad", 2):
                await state.change(value)
            await until(lambda: len(received) == 4)
            assert brief(received) == [
                ("add", "pump/1", 0),
                ("change", "pump/1", 1),
                ("change", "pump/1", "bad"),
                ("change", "pump/1", 2),
            ]
            assert client.connected

    run(case())


def test_callback_may_use_the_blocking_peer() -> None:
    """A callback of Peer may make blocking calls on the same peer."""
    answers: list[Any] = []
    with running_daemon() as daemon, jetbus.Peer(daemon.url) as peer, jetbus.Peer(daemon.url) as other:
        other.add_method("double", lambda number: 2 * number)
        peer.add_state("pump/1", 21)
        done = threading.Event()

        def callback(event: jetbus.Event) -> None:
            answers.append(peer.call("double", event.value))
            done.set()

        peer.fetch("pump/1", callback)
        assert done.wait(20)
        assert answers == [42]


def test_value_rule(bus: PeerFactory) -> None:
    """With a value rule a state comes and goes as its value does."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("pump/1", 5)
            fetch = await client.fetch("pump/** value<10", policy="every")
            await fetch.ready()
            for value in (6, 60, 61, 7):
                await state.change(value)
            await state.remove()
            assert brief(await fetch.take(5)) == [
                ("add", "pump/1", 5),
                ("change", "pump/1", 6),
                ("remove", "pump/1", 60),
                ("add", "pump/1", 7),
                ("remove", "pump/1", 7),
            ]

    run(case())


def test_glob(daemon_bus: PeerFactory) -> None:
    """A glob that the wire has no word for is tested by the peer."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            for path in ("a/x", "a/b/x", "b/x", "a/y"):
                await owner.add_state(path, 1)
            fetch = await client.fetch("a/*x", policy="every")
            await fetch.ready()
            late = await owner.add_state("a/zx", 2)
            await owner.add_state("a/c/x", 1)
            await late.change(3)
            assert brief(await fetch.take(3)) == [("add", "a/x", 1), ("add", "a/zx", 2), ("change", "a/zx", 3)]

    run(case())


@pytest.mark.parametrize(("kind", "fine", "read", "bad", "named"), TYPED.values(), ids=TYPED)
def test_typed_fetch(daemon_bus: PeerFactory, kind: Any, fine: Any, read: Any, bad: Any, named: str) -> None:
    """A typed fetch gives values of that type; a bad one raises an error that names the field, and it goes on."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            state = await owner.add_state("room/1", fine)
            fetch = await client.fetch("room/**", type=kind, policy="every")
            await fetch.ready()
            await state.change(bad)
            await state.change(fine)
            first, problem, last = await fetch.take(3)
            assert (first.value, last.kind, last.value) == (read, "change", read)
            assert isinstance(problem, jetbus.InvalidValue)
            assert problem.path == "room/1"
            assert named in str(problem)

    run(case())


def test_latest_conflates(bus: PeerFactory) -> None:
    """With policy latest a newer event takes the place of one that nobody has read, and is counted."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("pump/1", 0)
            fetch = await client.fetch("pump/**")
            await fetch.ready()
            for value in range(1, 101):
                await state.change(value)
            await owner.info()
            await client.info()
            assert brief(await fetch.take(1)) == [("add", "pump/1", 100)]
            assert fetch.conflated == 100
            await state.change(101)
            assert brief(await fetch.take(1)) == [("change", "pump/1", 101)]

    run(case())


def test_every_that_is_not_read_ends(bus: PeerFactory) -> None:
    """With policy every a fetch that is not read in time ends with TooSlow, after what was queued; it costs no more."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("pump/1", 0)
            fetch = await client.fetch("pump/**", policy="every", queue_max=10)
            await fetch.ready()
            for value in range(1, 101):
                await state.change(value)
            await owner.info()
            await client.info()
            assert [event.value for event in await fetch.take(11)] == list(range(11))
            problem: Any = None
            while problem is None:
                try:
                    await fetch.take(1)
                except jetbus.TooSlow as slow:
                    problem = slow
            assert "latest" in str(problem)
            assert client.inner.session.fetches == {}

    run(case())


def test_iteration(daemon_bus: PeerFactory) -> None:
    """A fetch is iterated over, in pieces if wanted, until it is closed."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            for number in range(5):
                await owner.add_state(f"pump/{number}", number)
            fetch = await client.fetch("pump/**")
            await fetch.ready()

            async def some(count: int) -> list[int]:
                seen: list[int] = []
                if fetch.blocking:
                    for event in fetch.inner:
                        seen.append(event.value)
                        if len(seen) == count:
                            break
                else:
                    async for event in fetch.inner:
                        seen.append(event.value)
                        if len(seen) == count:
                            break
                return seen

            assert await some(2) == [0, 1]
            await fetch.close()
            assert await some(9) == [2, 3, 4]

    run(case())


def test_fetch_as_context(daemon_bus: PeerFactory) -> None:
    """A fetch in a with block is ready at its start and closed at its end; so is a mirror."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            await owner.add_state("pump/1", 1)

            def block() -> dict[str, Any]:
                with client.inner.fetch() as fetch, client.inner.mirror() as mirror:
                    assert fetch.next(20).value == 1
                    return dict(mirror)

            async def block_async() -> dict[str, Any]:
                async with client.inner.fetch() as fetch, client.inner.mirror() as mirror:
                    assert (await anext(fetch)).value == 1
                    return dict(mirror)

            assert await client.do(block if client.blocking else block_async) == {"pump/1": 1}
            assert client.inner.session.fetches == {}

    run(case())


def test_mirror(bus: PeerFactory) -> None:
    """A mirror is always what matches now, and keeps its last picture when it is closed."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("pump/1", 1)
            await owner.add_state("pump/2", 2)
            await owner.add_method("pump/start", print)
            mirror = await client.mirror("pump/**")
            await mirror.ready()
            assert dict(mirror.inner) == {"pump/1": 1, "pump/2": 2, "pump/start": None}
            assert (len(mirror.inner), "pump/2" in mirror.inner) == (3, True)
            await state.change(10)
            await until(lambda: mirror.inner["pump/1"] == 10)
            await state.remove()
            await until(lambda: "pump/1" not in mirror.inner)
            await mirror.close()
            await owner.add_state("pump/3", 3)
            await client.info()
            assert dict(mirror.inner) == {"pump/2": 2, "pump/start": None}

    run(case())


def test_typed_mirror_keeps_what_fits(daemon_bus: PeerFactory) -> None:
    """A typed mirror keeps the old value where the new one does not fit."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            state = await owner.add_state("pump/1", {"celsius": 1})
            mirror = await client.mirror("pump/**", type=Reading)
            await mirror.ready()
            await state.change("hot")
            await owner.info()
            await client.info()
            assert dict(mirror.inner) == {"pump/1": Reading(1.0)}

    run(case())


def test_sorted(bus: PeerFactory) -> None:
    """A sorted fetch always has the current list; iterating gives the newest one."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            states = {path: await owner.add_state(path, value) for path, value in (("a", 3), ("b", 1), ("c", 2))}
            await owner.add_state("d", "no number")
            fetch = await client.fetch(sort_by="value", descending=True, first=1, last=2)
            await fetch.ready()
            assert [(item.path, item.value) for item in fetch.items] == [("a", 3), ("c", 2)]
            await states["b"].change(9)
            await until(lambda: fetch.items[0].path == "b")
            assert [item.path for item in (await fetch.take(1))[0]] == ["b", "a"]
            await states["b"].remove()
            assert [item.path for item in (await fetch.take(1))[0]] == ["a", "c"]

    run(case())


def test_sorted_glob(bus: PeerFactory) -> None:
    """A sorted fetch whose rule the wire has no words for is put in order by the peer."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            for path, value in (("a/x", 1), ("a/b/x", 99), ("b/x", 5), ("c/x", 3)):
                await owner.add_state(path, value)
            fetch = await client.fetch("*/x", sort_by="value", descending=True, last=2)
            await fetch.ready()
            assert [(item.path, item.value) for item in fetch.items] == [("b/x", 5), ("c/x", 3)]
            await fetch.take(1)
            await owner.add_state("d/x", 4)
            assert [(item.path, item.value) for item in (await fetch.take(1))[0]] == [("b/x", 5), ("d/x", 4)]

    run(case())


# Errors.

ERRORS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], type[jetbus.JetError], str]] = {
    "set of nothing": ("set", ("nothing", 1), {}, jetbus.NotFound, "nothing"),
    "call of nothing": ("call", ("nothing",), {}, jetbus.NotFound, "nothing"),
    "set of a read-only state": ("set", ("state", 1), {}, jetbus.ReadOnly, "state"),
    "set of a method": ("set", ("method", 1), {}, jetbus.NotState, "method"),
    "call of a state": ("call", ("state",), {}, jetbus.NotMethod, "state"),
    "add of what is there": ("add_state", ("state", 1), {}, jetbus.Occupied, "state"),
    "add of a method in its place": ("add_method", ("state", print), {}, jetbus.Occupied, "state"),
    "add in the daemon's own place": ("add_state", ("$jet/mine", 1), {}, jetbus.Occupied, "$jet/mine"),
    "an owner that takes too long": ("set", ("slow", 1), {"timeout_s": 0.01}, jetbus.TimedOut, "slow"),
}


@pytest.mark.parametrize(("name", "args", "options", "kind", "path"), ERRORS.values(), ids=ERRORS)
def test_errors(
    daemon_bus: PeerFactory,
    name: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
    kind: type[jetbus.JetError],
    path: str,
) -> None:
    """Each error has its own class, names its path and leaves no request open."""
    go = threading.Event()

    async def wait(_value: Any) -> None:
        await asyncio.to_thread(go.wait)

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            await owner.add_state("state", 1)
            await owner.add_state("slow", 1, on_set=wait)
            await owner.add_method("method", print)
            try:
                problem = await raised(getattr(client, name)(*args, **options))
            finally:
                go.set()
            assert type(problem) is kind
            assert isinstance(problem, jetbus.JetError)
            assert problem.path == path
            assert client.open_request_count == 0

    run(case())


def test_owner_lost(bus: PeerFactory) -> None:
    """The caller of a method gets an error at once if the owner goes away without a response."""
    go = threading.Event()
    asked = threading.Event()

    async def wait(_value: Any) -> None:
        asked.set()
        await asyncio.to_thread(go.wait)

    async def case() -> None:
        async with bus.peer() as client:
            async with bus.peer() as owner:
                await owner.add_state("slow", 1, on_set=wait)
                setting = asyncio.ensure_future(client.set("slow", 2))
                await until(asked.is_set)
            assert isinstance(await raised(setting), jetbus.OwnerLost)
            go.set()

    run(case())


def test_states_above_states(daemon_bus: PeerFactory) -> None:
    """A state may be above another one: what the peers of others do, ours may do."""

    async def case() -> None:
        async with daemon_bus.peer() as owner, daemon_bus.peer() as client:
            await owner.add_state("pump", 1)
            await owner.add_state("pump/speed", 2)
            assert await client.get_all("pump**") == {"pump": 1, "pump/speed": 2}

    run(case())


def test_adding_twice(daemon_bus: PeerFactory) -> None:
    """Adding a path twice is refused without asking the daemon, and the first element stays."""

    async def case() -> None:
        async with daemon_bus.peer() as owner:
            await owner.add_state("pump/1", 1)
            assert isinstance(await raised(owner.add_state("pump/1", 2)), jetbus.Occupied)
            assert await owner.get_all() == {"pump/1": 1}

    run(case())


def test_an_add_in_the_background_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A decorated state whose path is taken is an error in the log, which names the path once."""

    async def case(url: str) -> None:
        async with jetbus.PeerAsync(url) as owner, jetbus.PeerAsync(url) as other:
            await owner.add_state("pump/1", 1)
            other.state("pump/1", 2)(lambda _value: None)
            await until(lambda: any("cannot add" in message for message in caplog.messages))

    with running_daemon() as daemon:
        run(case(daemon.url))
    (message,) = (message for message in caplog.messages if "cannot add" in message)
    assert message.count("cannot add pump/1: ") == 1


def test_wrong_rules(daemon_bus: PeerFactory) -> None:
    """A wrong rule is refused where it is written, before anything is sent."""

    async def case() -> None:
        async with daemon_bus.peer() as client:
            for asking in (client.get_all("a b"), client.fetch("a b"), client.mirror("a b"), client.wait_for("a b")):
                assert isinstance(await raised(asking), jetbus.InvalidRule)

    run(case())


# Requests.


def test_open_requests_are_counted(bus: PeerFactory) -> None:
    """A peer knows how many of its requests wait for an answer."""
    go = threading.Event()

    async def wait() -> None:
        await asyncio.to_thread(go.wait)

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_method("wait", wait)
            calls = [asyncio.ensure_future(client.call("wait")) for _ in range(3)]
            await until(lambda: client.open_request_count == 3)
            go.set()
            await asyncio.gather(*calls)
            assert client.open_request_count == 0

    run(case())


def test_cancelling_cancels_the_request() -> None:
    """Cancelling a task forgets its request; the late answer disturbs nobody."""
    go = threading.Event()

    async def wait() -> None:
        await asyncio.to_thread(go.wait)

    async def case() -> None:
        with running_daemon() as daemon:
            async with jetbus.PeerAsync(daemon.url) as owner, jetbus.PeerAsync(daemon.url) as client:
                await owner.add_method("wait", wait)
                task = asyncio.ensure_future(client.call("wait"))
                await until(lambda: client.open_request_count == 1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert client.open_request_count == 0
                go.set()
                await client.info()
                assert await client.call("wait") is None

    run(case())


def test_daemon_that_knows_no_timeouts(face: str) -> None:
    """The peer ends requests in time if the daemon does not."""

    async def case() -> None:
        async with listening(silent={"set"}) as daemon:
            bus = PeerFactory(daemon.url, face)
            async with bus.peer() as client:
                problem = await raised(client.set("pump/1", 1, timeout_s=-1.9))
                assert isinstance(problem, jetbus.TimedOut)
                assert problem.path == "pump/1"
                assert client.open_request_count == 0

    run(case())


# Connections.


def test_close_leaves_nothing(bus: PeerFactory) -> None:
    """After close there is no task and no thread left, and what was waited for has ended."""
    before = set(threading.enumerate())

    async def case() -> None:
        own = asyncio.all_tasks()
        async with bus.peer() as owner:
            client = bus.make()
            await client.connect()
            go = threading.Event()

            async def wait() -> None:
                await asyncio.to_thread(go.wait)

            await owner.add_method("wait", wait)
            await client.fetch("**", lambda _event: None)
            fetch = await client.fetch()
            mirror = await client.mirror()
            await mirror.ready()
            call = asyncio.ensure_future(client.call("wait"))
            await until(lambda: client.open_request_count == 1)
            await client.close()
            assert isinstance(await raised(call), jetbus.NotConnected)
            assert [event.path for event in await fetch.rest()] == ["wait"]
            assert not client.connected
            assert isinstance(await raised(client.set("wait", 1)), jetbus.NotConnected)
            go.set()
        assert asyncio.all_tasks() == own

    run(case())
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("jet-"):
            thread.join(20)
            assert not thread.is_alive()


def test_connect_again(bus: PeerFactory) -> None:
    """A closed peer can be connected again and owns what it owned."""

    async def case() -> None:
        async with bus.peer() as client:
            owner = bus.make()
            await owner.connect()
            state = await owner.add_state("pump/1", 1)
            await owner.close()
            await until_gone(client)
            await state.change(2)
            await owner.connect()
            await owner.connect()
            assert (await client.wait_for("pump/1")).value == 2
            await owner.close()

    async def until_gone(client: Twin) -> None:
        mirror = await client.mirror()
        await mirror.ready()
        await until(lambda: not mirror.inner)
        await mirror.close()

    run(case())


def test_closing_twice(daemon_bus: PeerFactory) -> None:
    """Closing what is closed, or was never open, is nothing."""

    async def case() -> None:
        peer = daemon_bus.make()
        await peer.close()
        await peer.connect()
        await peer.close()
        await peer.close()

    run(case())


@pytest.mark.parametrize("url", ["jet://127.0.0.1:1", "ws://127.0.0.1:1", "unix:///nowhere/jet", "unix://@nobody-here"])
def test_no_daemon(face: str, url: str) -> None:
    """Without a daemon connecting fails with an error that says why and what to do."""

    async def case() -> None:
        peer = PeerFactory(url, face).make()
        problem = await raised(peer.connect())
        assert isinstance(problem, jetbus.NotConnected)
        assert url.split("://")[1] in str(problem)
        assert "jetd" in str(problem)
        assert not peer.connected

    run(case())


def test_untrusted_certificate(face: str, certificate: Path) -> None:
    """A daemon whose certificate is not trusted is not connected to."""

    async def case() -> None:
        with running_daemon(tls_cert=certificate) as daemon:
            for url in (daemon.url, daemon.ws_url):
                problem = await raised(PeerFactory(url, face).make().connect())
                assert isinstance(problem, jetbus.NotConnected)
                assert "certificate" in str(problem).lower()

    run(case())


def test_not_a_websocket(face: str) -> None:
    """A WebSocket handshake with something else fails with its reason."""

    async def case() -> None:
        async with listening(hang_up=True) as daemon:
            problem = await raised(PeerFactory(daemon.url.replace("jet:", "ws:"), face).make().connect())
            assert isinstance(problem, jetbus.NotConnected)
            assert "closed the connection before it answered" in str(problem)

    run(case())


def test_daemon_that_hangs_up(face: str) -> None:
    """A connection that breaks before the daemon has answered is an error; no attempt to come back is left behind."""

    async def case() -> None:
        own = asyncio.all_tasks()
        async with listening(hang_up=True) as daemon:
            lost: list[str] = []
            peer = PeerFactory(daemon.url, face).make(on_loss=lambda: lost.append("loss"))
            assert isinstance(await raised(peer.connect()), jetbus.NotConnected)
            assert not peer.connected
            assert lost == []
            assert asyncio.all_tasks() == own

    run(case())


def test_daemon_that_says_nothing(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that takes the connection and never answers is given up after a while."""
    monkeypatch.setattr(connection, "CONNECT_S", 0.05)

    async def case() -> None:
        async with listening(silent={"info"}) as daemon:
            peer = PeerFactory(daemon.url, face).make()
            problem = await raised(peer.connect())
            assert isinstance(problem, jetbus.NotConnected)
            assert "no answer" in str(problem)
            assert not peer.connected

    run(case())


UNANSWERED: dict[str, Callable[[Twin], Any]] = {
    "add": lambda peer: peer.add_state("a", 1),
    "get": lambda peer: peer.get_all("a"),
    "config": lambda peer: peer.config(name="me"),
    "authenticate": lambda peer: peer.authenticate("ann", "secret"),
}


@pytest.mark.parametrize("service", UNANSWERED)
def test_daemon_that_falls_silent(face: str, service: str) -> None:
    """A request that a daemon never answers ends with TimedOut, which says what to do; nothing is left over."""

    async def case() -> None:
        async with listening(silent={service}) as daemon, PeerFactory(daemon.url, face).peer(answer_s=0.1) as peer:
            problem = await raised(UNANSWERED[service](peer))
            assert isinstance(problem, jetbus.TimedOut)
            assert str(problem).startswith("the daemon has not answered for 0.1 s; it may hang or be stopped")
            await until(lambda: peer.open_request_count == 0)

    run(case())


def test_remove_that_is_not_answered(face: str) -> None:
    """A state whose removal is not answered is given up all the same."""

    async def case() -> None:
        async with listening(silent={"remove"}) as daemon, PeerFactory(daemon.url, face).peer(answer_s=0.5) as peer:
            state = await peer.add_state("a", 1)
            assert isinstance(await raised(state.remove()), jetbus.TimedOut)
            assert not state.added

    run(case())


def test_fetch_that_is_not_answered(face: str) -> None:
    """A fetch that is not answered ends with that error."""

    async def case() -> None:
        async with listening(silent={"fetch"}) as daemon, PeerFactory(daemon.url, face).peer(answer_s=0.1) as peer:
            fetch = await peer.fetch("a")
            assert isinstance(await raised(fetch.take(1)), jetbus.TimedOut)

    run(case())


WRONG_URLS = {
    "http://localhost": "use jet://, jets://, ws://, wss://, unix:// or, for the binary protocol, jetb://",
    "jet://": "names no host",
    "jet://localhost:0": "no port between 1 and 65535",
    "jet://localhost:99999": "no port between 1 and 65535",
    "unix://": "names no socket",
    "unix://@": "names no socket",
}


@pytest.mark.parametrize(("url", "wrong"), WRONG_URLS.items(), ids=WRONG_URLS)
def test_wrong_urls(face: str, url: str, wrong: str) -> None:
    """A url that leads nowhere is refused where it is written, with what would do."""
    with pytest.raises(ValueError, match=wrong):
        PeerFactory(url, face).make()


URLS = {
    "localhost": "jet://localhost:11122",
    "plant:1": "jet://plant:1",
    "jet://ann:secret@plant": "jet://plant:11122",
    "jets://plant": "jets://plant:11122",
    "ws://plant": "ws://plant:11123/",
    "wss://plant/bus?token=1": "wss://plant:11123/bus?token=1",
    "jet://[::1]:5": "jet://[::1]:5",
    "unix:///run/jet": "unix:///run/jet",
    "unix://@jet": "unix://@jet",
}


@pytest.mark.parametrize(("url", "received"), URLS.items(), ids=URLS)
def test_urls(face: str, url: str, received: str) -> None:
    """A peer tells where it connects to, with the port and without a password."""
    assert PeerFactory(url, face).make().url == received


def test_default_url(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a url it is that of JET_URL, and without that the local daemon's."""
    monkeypatch.delenv("JET_URL", raising=False)
    assert PeerFactory("", face).make().url == "jet://localhost:11122"
    monkeypatch.setenv("JET_URL", "jet://plant:5")
    assert PeerFactory("", face).make().url == "jet://plant:5"
