"""Mistakes that programs make with a peer: each is an error, or a warning in the log, that says what to do."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import jetbus
from jetbus.peer import connection
from jetbus.testing import RunningDaemon
from support.peers import DEADLINE_S, PeerFactory, run


class Mistake(NamedTuple):
    """Something that cannot work, the error it raises, and the advice in its text."""

    make: Callable[[Any], Any]
    error: type[Exception]
    advice: str


MISTAKES = {
    "a policy with a typo": Mistake(
        lambda peer: peer.fetch("a/**", policy="evry"), ValueError, "policy is 'evry'; use 'latest' or 'every'"
    ),
    "a fetch callback that is no function": Mistake(
        lambda peer: peer.fetch("a/**", 5), TypeError, "callback is 5, which cannot be called; give a function"
    ),
    "on_set=True": Mistake(
        lambda peer: peer.add_state("a/b", 1, on_set=True),
        TypeError,
        "on_set of a/b is True, which cannot be called; give a function of the requested value",
    ),
    "a method that is no function": Mistake(
        lambda peer: peer.add_method("a/m", 5), TypeError, "give a function, or add a state with add_state"
    ),
    "a decorated state's type as text": Mistake(
        lambda peer: peer.state("a/b", 1, type="int")(lambda _value: None), TypeError, "give the type itself, type=int"
    ),
    "a state's type as text": Mistake(
        lambda peer: peer.add_state("a/b", 1, type="int"), TypeError, "give the type itself, type=int"
    ),
    "a get's type as text": Mistake(
        lambda peer: peer.get("a/b", type="float"), TypeError, "give the type itself, type=float"
    ),
    "a fetch's type as text": Mistake(
        lambda peer: peer.fetch("a/**", type="Reading"), TypeError, "give the type itself, for instance type=int"
    ),
    "a type that no value can have": Mistake(
        lambda peer: peer.fetch("a/**", type=7), TypeError, "give a type such as int, list[float]"
    ),
    "a plus of MQTT": Mistake(lambda peer: peer.fetch("indoor/+"), jetbus.InvalidRule, "use indoor/*, where"),
    "a hash of MQTT": Mistake(lambda peer: peer.mirror("indoor/#"), jetbus.InvalidRule, "use indoor/**, where"),
    "a plus inside": Mistake(lambda peer: peer.get_all("+/temp value>7"), jetbus.InvalidRule, "use */temp, where"),
    "a get of a topic filter": Mistake(
        lambda peer: peer.get("indoor/#"), jetbus.NotFound, "get_all reads rules, and indoor/** is the one for that"
    ),
    "a peer to another process": Mistake(pickle.dumps, TypeError, "create one there"),
}
CONSTRUCTORS = {
    "a port alone": Mistake(lambda kind: kind(11122), TypeError, "a text such as 'jet://localhost:11122', not 11122"),
    "host and port": Mistake(lambda kind: kind("plant", 11125), TypeError, "use 'jet://plant:11125'"),
    "a name without its keyword": Mistake(lambda kind: kind("jet://plant", "pump"), TypeError, "'pump' by name"),
    "on_loss that is no function": Mistake(lambda kind: kind(on_loss=True), TypeError, "on_loss is True, which cannot"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_an_error_that_says_what_to_do(name: str, face: str, daemon: RunningDaemon) -> None:
    """It is raised where the mistake is made, and leaves nothing behind."""
    mistake = MISTAKES[name]

    async def case() -> None:
        async with PeerFactory(daemon.url, face).peer() as peer:
            with pytest.raises(mistake.error) as raised:
                await peer.do(lambda: mistake.make(peer.inner))
            assert mistake.advice in str(raised.value)
            assert await peer.get_all("a/**") == {}

    run(case())


@pytest.mark.parametrize("name", CONSTRUCTORS)
@pytest.mark.parametrize("kind", [jetbus.Peer, jetbus.PeerAsync])
def test_a_mistake_in_creating_a_peer(name: str, kind: type[Any]) -> None:
    """Whatever is given to a peer wrongly is refused when it is created."""
    mistake = CONSTRUCTORS[name]
    with pytest.raises(mistake.error) as raised:
        mistake.make(kind)
    assert mistake.advice in str(raised.value)


def test_a_quoted_path_may_have_any_parts(daemon: RunningDaemon) -> None:
    """Paths that look like topic filters can be fetched as they are."""
    with jetbus.Peer(daemon.url) as peer:
        peer.add_state("indoor/+", 21)
        assert peer.get_all('"indoor/+"') == {"indoor/+": 21}
        assert peer.get("indoor/+") == 21


USES: dict[str, Callable[[jetbus.PeerAsync], Any]] = {
    "get": lambda peer: peer.get("a/b"),
    "set": lambda peer: peer.set("a/b", 1),
    "call": lambda peer: peer.call("a/m"),
    "add": lambda peer: peer.add_state("a/c", 1),
    "fetch": lambda peer: peer.fetch("a/**"),
    "connect": lambda peer: peer.connect(),
}


@pytest.mark.parametrize("use", USES)
def test_a_second_event_loop(use: str, daemon: RunningDaemon) -> None:
    """A peer that is used on another event loop than the one it connected on says so at once."""
    peer = jetbus.PeerAsync(daemon.url)

    async def misuse() -> None:
        outcome = USES[use](peer)
        if use != "fetch":
            await outcome

    first = asyncio.new_event_loop()
    first.run_until_complete(peer.connect())
    with pytest.raises(RuntimeError, match=r"create it on this loop: each asyncio\.run starts a new one"):
        asyncio.run(asyncio.wait_for(misuse(), DEADLINE_S))
    first.run_until_complete(peer.close())
    first.close()


@pytest.mark.parametrize("use", ["change", "get", "fetch"])
def test_another_thread(use: str, daemon: RunningDaemon) -> None:
    """A PeerAsync that a thread uses says that this needs a Peer."""

    async def case() -> None:
        async with jetbus.PeerAsync(daemon.url) as peer:
            state = await peer.add_state("a/b", 1)

            def misuse() -> None:
                if use == "change":
                    state.change(2)
                    return
                outcome = USES[use](peer)
                if use == "get":
                    asyncio.run(asyncio.wait_for(outcome, DEADLINE_S))

            with pytest.raises(RuntimeError, match="use a Peer, which any thread may use"):
                await asyncio.to_thread(misuse)
            assert await peer.get("a/b") == 1

    run(case())


def test_a_peer_may_be_used_while_its_loop_does_not_run(daemon: RunningDaemon) -> None:
    """Between two runs of its loop a peer takes changes, which the next run sends."""
    loop = asyncio.new_event_loop()
    peer = jetbus.PeerAsync(daemon.url)
    loop.run_until_complete(peer.connect())
    state = loop.run_until_complete(_await(peer.add_state("a/b", 1)))
    state.change(2)
    assert loop.run_until_complete(_await(peer.get("a/b"))) == 2
    loop.run_until_complete(peer.close())
    loop.close()


async def _await(outcome: Any) -> Any:
    return await outcome


@pytest.mark.parametrize("handler", ["plain", "async"])
def test_a_callback_that_blocks_the_loop(
    handler: str, daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that keeps the event loop from running is reported once, with the remedy."""
    monkeypatch.setattr(connection, "BLOCKED_S", 0.2)
    block_s = connection.SWEEP_S + 0.3

    def block(_value: Any) -> None:
        time.sleep(block_s)

    async def block_async(_value: Any) -> None:
        time.sleep(block_s)

    async def case() -> None:
        async with jetbus.PeerAsync(daemon.url, name="blocked") as peer:
            await peer.add_state("a/b", 1, on_set=block if handler == "plain" else block_async)
            for value in range(2):
                await peer.set("a/b", value)
            async with asyncio.timeout(DEADLINE_S):
                while not caplog.records:
                    await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING, logger="jetbus.peer"):
        run(case())
    (record,) = caplog.records
    assert "was blocked for 0." in record.getMessage()
    assert "await asyncio.to_thread(...)" in record.getMessage()


ASKING: dict[str, tuple[Callable[[jetbus.Peer], Any], str]] = {
    "set": (lambda peer: peer.set("own/b", 5), "change it by its handle, change\\(value\\), or use set_async"),
    "call": (lambda peer: peer.call("own/m"), "call the function itself, or use call_async"),
}


@pytest.mark.parametrize("service", ASKING)
def test_a_callback_that_waits_for_itself(service: str, daemon: RunningDaemon) -> None:
    """An on_set that asks its own peer for something that another callback must do is refused, and nothing hangs."""
    ask, advice = ASKING[service]
    problems: list[BaseException] = []

    def on_set(_value: Any) -> None:
        try:
            ask(peer)
        except RuntimeError as problem:
            problems.append(problem)

    with jetbus.Peer(daemon.url) as peer, jetbus.Peer(daemon.url) as other:
        peer.add_state("own/a", 1, on_set=on_set)
        peer.add_state("own/b", 1, on_set=lambda _value: None)
        peer.add_method("own/m", lambda: 1)
        other.set("own/a", 2)
        with pytest.raises(RuntimeError, match=advice):
            raise problems[0]


def test_a_callback_may_ask_for_what_does_not_need_its_thread(daemon: RunningDaemon) -> None:
    """An on_set may change its own states, begin a set of them, and set those whose on_set is async."""
    begun = threading.Event()

    async def accept(_value: Any) -> None:
        """Accept every value."""

    def on_set(_value: Any) -> None:
        state.change(3)
        peer.set_async("own/b", 4, on_result=lambda _done: begun.set())
        peer.set("own/c", 5)
        with pytest.raises(jetbus.ReadOnly):
            peer.set("own/fixed", 6)

    with jetbus.Peer(daemon.url) as peer:
        state = peer.add_state("own/b", 1, on_set=lambda _value: None)
        peer.add_state("own/a", 1, on_set=on_set)
        peer.add_state("own/c", 1, on_set=accept)
        peer.add_state("own/fixed", 1)
        peer.set("own/a", 2)
        assert begun.wait(DEADLINE_S)
        assert peer.get_all("own/*") == {"own/b": 4, "own/a": 2, "own/c": 5, "own/fixed": 1}
