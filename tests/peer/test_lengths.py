"""Messages that are longer than the daemon takes: both faces on a daemon that closes the connection on them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import jetbus
from jetbus.peer import connection
from jetbus.peer.elements import OwnedState
from jetbus.peer.lengths import NOTED_MAX, SHORT_BYTES, Lengths, LongMessage, Suspicion
from jetbus.peer.peer_session import PeerSession
from jetbus.peer.requests import SessionWaiter
from jetbus.testing import RunningDaemon, running_daemon
from support.peers import PeerFactory, raised, run, until
from support.standin import standing_in

LIMIT = 512
"""That of cjet."""
LONG = "x" * 600
LONGER = "x" * 700


@pytest.fixture
def short(face: str) -> Iterator[PeerFactory]:
    """A bus whose daemon closes the connection on messages of more than 512 bytes: a stand-in for cjet."""
    with standing_in("cjet") as url:
        yield PeerFactory(url, face)


class Losses:
    """Number of losses and returns of the connection."""

    def __init__(self) -> None:
        self.lost = self.returned = 0

    def options(self) -> dict[str, Any]:
        return {"on_loss": self._lose, "on_return": self._return}

    def _lose(self) -> None:
        self.lost += 1

    def _return(self) -> None:
        self.returned += 1


def test_an_owner_goes_on_without_the_value(short: PeerFactory, caplog: pytest.LogCaptureFixture) -> None:
    """A value that is too long is left out when all is added again; the owner is told by the log and by change."""

    async def case() -> None:
        losses = Losses()
        async with short.peer(**losses.options()) as owner, short.peer() as client:
            states = [await owner.add_state(f"s/{number}", number) for number in range(5)]
            mirror = await client.mirror("s/**")
            await states[2].change(LONG)
            await until(lambda: losses.returned == 2)
            await until(lambda: dict(mirror.inner) == {f"s/{number}": number for number in range(5)})
            assert losses.lost == 2  # the change, and the add that confirmed it
            assert states[2].value == 2
            for value in (LONG, LONGER):
                problem = await raised(states[2].change(value))
                assert isinstance(problem, jetbus.MessageTooLong)
                assert problem.path == "s/2"
                assert "bytes" in str(problem)
            assert states[2].value == 2
            await states[2].change("short")
            await until(lambda: mirror.inner["s/2"] == "short")
            assert losses.lost == 2

    with caplog.at_level(logging.ERROR, "jetbus.peer"):
        run(case())
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("s/2: the daemon closed the connection because of a message of 6")
    assert line.endswith("it is added again with an older value: 2")


def test_several_values(short: PeerFactory) -> None:
    """Several values that are too long are found out one after the other, and all states come back."""

    async def case() -> None:
        losses = Losses()
        async with short.peer(**losses.options()) as owner, short.peer() as client:
            states = [await owner.add_state(f"s/{number}", number, only_changes=True) for number in range(4)]
            mirror = await client.mirror("s/**")
            await states[0].change("x" * 800)
            await states[1].change("x" * 600)
            await states[3].change("x" * 700)
            await until(lambda: [state.inner.value for state in states] == [0, 1, 2, 3])
            await until(lambda: dict(mirror.inner) == {f"s/{number}": number for number in range(4)})
            for _ in range(2):
                assert isinstance(await raised(states[1].change("x" * 600)), jetbus.MessageTooLong)

    run(case())


def test_a_first_add(short: PeerFactory) -> None:
    """An add that is too long fails with MessageTooLong; what else is owned comes back, that one does not."""

    async def case() -> None:
        losses = Losses()
        async with short.peer(**losses.options()) as owner, short.peer() as client:
            await owner.add_state("s/short", 1)
            problem = await raised(owner.add_state("s/long", LONG))
            assert isinstance(problem, jetbus.MessageTooLong)
            assert problem.path == "s/long"
            await until(lambda: losses.returned == 1)
            mirror = await client.mirror("s/**")
            await until(lambda: dict(mirror.inner) == {"s/short": 1})

    run(case())


def test_a_client(face: str) -> None:
    """A set that is too long fails with MessageTooLong, which is also a ConnectionLost; the next one is done."""

    async def case(short: PeerFactory) -> None:
        losses = Losses()
        async with short.peer() as owner, short.peer(**losses.options()) as client:
            await owner.add_state("s", 1, on_set=lambda _value: None)
            problem = await raised(client.set("s", LONG))
            assert isinstance(problem, jetbus.MessageTooLong)
            assert isinstance(problem, jetbus.ConnectionLost)
            assert problem.path == "s"
            await until(lambda: losses.returned == 1)
            await client.set("s", 2)
            assert await client.get_all("s") == {"s": 2}

    with standing_in("cjet") as url:
        run(case(PeerFactory(url, face)))


def test_a_fetch(short: PeerFactory) -> None:
    """A fetch whose rule is too long ends with MessageTooLong; other fetches go on."""

    async def case() -> None:
        losses = Losses()
        async with short.peer() as owner, short.peer(**losses.options()) as client:
            mirror = await client.mirror("s")
            fetch = await client.fetch(contains_all_of=[f"part{number:03}" for number in range(60)])
            assert isinstance(await raised(fetch.ready()), jetbus.MessageTooLong)
            await until(lambda: losses.returned == 2)
            await owner.add_state("s", 1)
            await until(lambda: dict(mirror.inner) == {"s": 1})
            again = await client.fetch(contains_all_of=[f"part{number:03}" for number in range(60)])
            assert isinstance(await raised(again.ready()), jetbus.MessageTooLong)
            assert losses.lost == 2

    run(case())


@pytest.mark.parametrize("name", ["cjet", "unknown"])
def test_batches_are_divided(name: str, face: str) -> None:
    """Batches are sent in parts that cjet takes; of a daemon of an unknown kind their length is found out by halves."""

    async def case(url: str) -> None:
        losses, bus = Losses(), PeerFactory(url, face)
        async with bus.peer(**losses.options()) as owner, bus.peer() as client:
            states = [await owner.add_state(f"s/{number}", number) for number in range(16)]
            mirror = await client.mirror("s/**")

            def shows(text: str) -> bool:
                return set(mirror.inner.values()) == {text}

            def change(text: str) -> None:
                with owner.inner.batch():
                    for state in states:
                        state.inner.change(text)

            for text in (letter * 60 for letter in "abcdef"):
                await owner.do(partial(change, text))
                await until(partial(shows, text))
            assert losses.lost == (0 if name == "cjet" else 2)  # of 1,900, of 900 and then of 475 bytes

    with standing_in("cjet", {"name": name}) as url:
        run(case(url))


def test_a_set_that_would_be_too_long(short: PeerFactory) -> None:
    """An owner whose answer to a set would be too long a change refuses it in words."""

    async def case() -> None:
        losses = Losses()
        async with short.peer(**losses.options()) as owner, short.peer() as client:
            state = await owner.add_state("s", 1, on_set=lambda _value: LONG)
            problem = await raised(client.set("s", 2))
            assert isinstance(problem, jetbus.JetError)
            await until(lambda: losses.returned == 2)
            await owner.info()  # behind the add
            refused = await raised(client.set("s", 2))
            assert "closed the connection because of a message of" in str(refused)
            assert (state.value, losses.lost) == (1, 2)

    run(case())


def test_a_restart_is_no_refusal(face: str) -> None:
    """A daemon that is restarted while a long value is on its way is not taken for one that refuses it."""

    async def case() -> None:
        with running_daemon() as daemon:
            bus = PeerFactory(daemon.url, face)
            losses = Losses()
            async with bus.peer(**losses.options()) as owner, bus.peer() as client:
                state = await owner.add_state("s", 1)
                for number in range(3):
                    value = LONG + "x" * number
                    await state.change(value)
                    await asyncio.to_thread(daemon.restart)
                    await until(lambda returned=number + 1: losses.returned == returned)  # type: ignore[misc]
                    await until(lambda: client.inner.connected)
                    assert (await client.wait_for("s", timeout_s=20)).value == value

    run(case())


def test_waits_grow_until_all_is_answered(short: PeerFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait before a reconnect grows while connections end before all is said again, and is short after that."""
    attempts: list[int] = []

    def wait_s(attempt: int) -> float:
        attempts.append(attempt)
        return 0.001

    monkeypatch.setattr(connection, "backoff_s", wait_s)

    async def case() -> None:
        losses = Losses()
        async with short.peer(**losses.options()) as owner:
            state = await owner.add_state("s", 1)
            await state.change("x" * 900)
            await until(lambda: losses.returned == 2)
            assert attempts == [0, 1]
            await owner.info()  # behind all that was said again
            await state.change("x" * 600)
            await until(lambda: losses.returned == 4)
            assert attempts == [0, 1, 0, 1]

    run(case())


def test_nothing_of_it_fits() -> None:
    """A state that is too long even without its value is left out, and all others are added again."""
    session = PeerSession(spawn=lambda _work, _done: None)
    session.daemon = {"name": "cjet"}
    session.on_connected()
    for path in ("p" * 300, "short"):
        session.add(OwnedState(path, 1, None, None, None, None), SessionWaiter())
    session.receive([b'{"id":1,"result":true}', b'{"id":2,"result":true}'])
    session.on_lost()
    session.forget_lengths()
    session._lengths.refused = 300
    session.on_connected()
    said = [json.loads(message) for message in session.take_out()]
    assert [message["params"].get("path") for message in said] == ["short", None]


# -- what is known of lengths


STATE = OwnedState("s", None, None, None, None, None)


def request(size: int, number: int) -> LongMessage:
    return LongMessage(size, number, True, None)


def change(size: int, number: int) -> LongMessage:
    return LongMessage(size, number, False, STATE)


def noted(*messages: LongMessage) -> Lengths:
    lengths = Lengths()
    for message in messages:
        lengths.note(message, range(1, 100), 0)
    return lengths


ACCUSED: dict[str, tuple[list[LongMessage], set[int], int, LongMessage | None]] = {
    "nothing was long": ([], {3}, 3, None),
    "the first request without an answer": (
        [request(300, 1), request(600, 2), request(700, 3)],
        {2, 3},
        3,
        request(600, 2),
    ),
    "a change behind the last answer": ([change(600, 2)], set(), 2, change(600, 2)),
    "the longest change": ([change(600, 2), change(700, 2)], set(), 2, change(700, 2)),
    "a change before a request without an answer": ([change(600, 2)], {3}, 3, change(600, 2)),
    "a change behind a request without an answer": ([change(600, 3)], {3}, 3, None),
    "a change that has arrived": ([change(600, 2)], set(), 3, None),
    "a request that is answered late": ([request(600, 2)], {2}, 3, None),
}


@pytest.mark.parametrize("name", ACCUSED)
def test_which_message_is_accused(name: str) -> None:
    """The message that the connection may have ended on is the first long one that has not arrived."""
    messages, pending, last, accused = ACCUSED[name]
    expected = None if accused is None else Suspicion(accused, False)
    assert noted(*messages).on_lost(pending, last) == expected


def test_a_doubt_is_confirmed() -> None:
    """Two connections in a row that end on a long message tell the daemon's limit; an answer to all dispels a doubt."""
    lengths = noted(change(700, 1))
    assert lengths.on_lost(set(), 1) == Suspicion(change(700, 1), False)
    assert (lengths.refused, lengths.unremarkable) == (float("inf"), SHORT_BYTES)
    lengths.note(request(750, 2), {2}, 2)
    assert lengths.on_lost({2}, 2) == Suspicion(request(750, 2), True)
    assert lengths.refused == 700
    lengths = noted(change(700, 1))
    lengths.on_lost(set(), 1)
    lengths.on_settled()
    lengths.note(request(600, 2), {2}, 2)
    assert lengths.on_lost({2}, 2) == Suspicion(request(600, 2), False)


def test_what_is_noted_has_a_limit() -> None:
    """Long messages that have arrived are forgotten, and between two requests only the longest change is kept."""
    lengths = Lengths()
    for size in range(1000, 2000):
        lengths.note(change(size, 1), set(), 1)
    assert lengths.unproven_count == 1
    for number in range(2, 1000):
        lengths.note(request(2000 + number, number), {number}, number)
    assert lengths.unproven_count <= NOTED_MAX
    assert lengths.accepted > 2000
    for number in range(1000, 2000):  # none of which is answered
        lengths.note(request(2000 + number, number), range(1000, 2000), number)
    assert lengths.unproven_count == NOTED_MAX


FAR_TOO_LONG = "y" * 20_000
BEYOND: dict[str, Callable[[Any], Any]] = {
    "set": lambda peer: peer.set("a/b", FAR_TOO_LONG),
    "call": lambda peer: peer.call("a/m", FAR_TOO_LONG),
    "add": lambda peer: peer.add_state("a/c", FAR_TOO_LONG),
    "change": lambda peer: peer.state_of_its_own.change(FAR_TOO_LONG),
    "get": lambda peer: peer.get_all(contains=FAR_TOO_LONG),
}


@pytest.mark.parametrize("service", BEYOND)
def test_a_message_above_the_stated_limit_is_refused_by_itself(service: str, face: str) -> None:
    """A message that is longer than jetbus accepts fails alone: the connection stays, the next request is done."""

    async def case(url: str) -> None:
        lost: list[int] = []
        async with PeerFactory(url, face).peer(on_loss=lambda: lost.append(1)) as peer:
            await peer.add_method("a/m", len)
            state = await peer.add_state("a/b", "short", on_set=lambda _value: None)
            peer.inner.state_of_its_own = state.inner
            with pytest.raises(jetbus.MessageTooLong, match="the daemon accepts 10000; send less at a time") as raised:
                await peer.do(lambda: BEYOND[service](peer.inner))
            assert raised.value.path == {"call": "a/m", "add": "a/c", "get": None}.get(service, "a/b")
            assert await peer.get_all("a/**") == {"a/b": "short"}
            assert lost == []

    with running_daemon(message_bytes_max=10_000) as daemon:
        run(case(daemon.url))


def test_the_first_message_may_be_too_long(face: str) -> None:
    """A peer knows the limit of jetbus from the moment it is connected."""

    async def case(url: str) -> None:
        lost: list[int] = []
        async with PeerFactory(url, face).peer(on_loss=lambda: lost.append(1)) as peer:
            with pytest.raises(jetbus.MessageTooLong, match="the daemon accepts 10000"):
                await peer.add_state("a/b", FAR_TOO_LONG)
            assert await peer.get_all("a/**") == {}
            assert lost == []

    with running_daemon(message_bytes_max=10_000) as daemon:
        run(case(daemon.url))


def test_a_batch_above_the_stated_limit_is_split() -> None:
    """Messages that are too long together are sent as several batches."""
    with running_daemon(message_bytes_max=10_000) as daemon, jetbus.Peer(daemon.url) as peer:
        states = [peer.add_state(f"a/{number}", "") for number in range(30)]
        with peer.batch():
            for state in states:
                state.change("y" * 1000)
        assert set(peer.get_all("a/**").values()) == {"y" * 1000}


def test_a_batch_of_more_messages_than_the_daemon_takes_is_split(daemon: RunningDaemon) -> None:
    """A program may add all states of a plant in one batch."""
    count = 10_001
    with jetbus.Peer(daemon.url) as peer:
        with peer.batch():
            added = [peer.add_state_async(f"a/{number}", number) for number in range(count)]
        assert added[0].result(60).value == 0
        assert len(peer.get_all("a/**")) == count


def test_only_those_who_ask_are_told_the_limit(daemon: RunningDaemon) -> None:
    """The answer to a plain info is the same for every client."""
    with jetbus.Peer(daemon.url) as peer:
        assert "limits" not in peer.info()
