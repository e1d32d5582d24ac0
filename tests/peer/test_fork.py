"""Peers and processes: a fork copies a peer without what makes it work."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import pytest

import jetbus
from jetbus.testing import RunningDaemon, running_daemon
from support.peers import DEADLINE_S

ADVICE = "create a peer here, for instance in the initializer of a multiprocessing.Pool"
FORK = multiprocessing.get_context("fork")

# Globals, since a pool sends its child only the name of a case.
_peer: Any = None
_state: Any = None
_method: Any = None
_fetch: Any = None
_mirror: Any = None


def _change_in_batch() -> None:
    with _peer.batch():
        _state.change(2)


BLOCKING: dict[str, Callable[[], Any]] = {
    "change": lambda: _state.change(2),
    "change with quality": lambda: _state.change(2, quality="bad"),
    "change of a list": lambda: _state.change([1, 2.5]),
    "change in a batch": _change_in_batch,
    "describe": lambda: _state.describe(unit="m"),
    "remove": lambda: _state.remove(),
    "get": lambda: _peer.get("a/b"),
    "get_async": lambda: _peer.get_async("a/b").result(0),
    "set": lambda: _peer.set("a/b", 2),
    "set_async": lambda: _peer.set_async("a/b", 2).result(0),
    "call": lambda: _peer.call("a/m"),
    "add": lambda: _peer.add_state("a/c", 1),
    "fetch": lambda: _peer.fetch("a/**"),
    "next event": lambda: [_fetch.next(), _fetch.next(), _fetch.next()],
    "mirror": lambda: _mirror["a/b"],
    "connect": lambda: _peer.connect(),
}
ASYNC: dict[str, Callable[[], Any]] = {
    "change": lambda: _state.change(2),
    "get": lambda: asyncio.run(_peer.get("a/b")),
    "set": lambda: _peer.set("a/b", 2),
    "fetch": lambda: _peer.fetch("a/**"),
    "connect": lambda: asyncio.run(_peer.connect()),
}


def use(face: str, name: str) -> Any:
    return (BLOCKING if face == "blocking" else ASYNC)[name]()


def close() -> str:
    _peer.close()
    return "closed"


def test_a_peer_in_a_forked_process_is_refused() -> None:
    """A peer in a pool is an error that says what to do; nothing hangs, and the parent's goes on."""
    global _peer, _state, _fetch, _mirror
    with running_daemon() as daemon, jetbus.Peer(daemon.url) as _peer:
        _state = _peer.add_state("a/b", 1, on_set=lambda _value: None)
        _peer.add_method("a/m", lambda: 1)
        _fetch = _peer.fetch("a/**").ready()
        _mirror = _peer.mirror("a/**").ready()
        with FORK.Pool(1) as pool:
            for name in BLOCKING:
                with pytest.raises(RuntimeError, match=ADVICE):
                    pool.apply_async(use, ("blocking", name)).get(DEADLINE_S)
            assert pool.apply_async(close).get(DEADLINE_S) == "closed"
        assert _peer.set("a/b", 7).value == 7
        assert _peer.get_all("a/**") == {"a/b": 7}


def test_an_async_peer_in_a_forked_process_is_refused() -> None:
    """So is each use of a PeerAsync."""
    global _peer, _state

    async def case(url: str) -> None:
        global _peer, _state
        async with jetbus.PeerAsync(url) as _peer:
            _state = await _peer.add_state("a/b", 1)
            with FORK.Pool(1) as pool:
                for name in ASYNC:
                    with pytest.raises(RuntimeError, match=ADVICE):
                        await asyncio.to_thread(pool.apply_async(use, ("async", name)).get, DEADLINE_S)
            assert await _peer.get("a/b") == 1

    with running_daemon() as daemon:
        asyncio.run(asyncio.wait_for(case(daemon.url), 3 * DEADLINE_S))


@pytest.mark.parametrize("scheme", ["jet", "ws"])
def test_a_child_does_not_hold_the_connection(scheme: str, daemon: RunningDaemon) -> None:
    """A peer leaves the bus when its process closes it, though a forked child lives on."""
    reader, writer = os.pipe()
    peer = jetbus.Peer(daemon.url if scheme == "jet" else daemon.ws_url)
    peer.connect()
    peer.add_state("a/b", 1)
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)  # lives until the test ends
        os._exit(0)
    os.close(reader)
    try:
        with jetbus.Peer(daemon.url) as watcher, watcher.fetch("a/b") as fetch:
            assert fetch.next(DEADLINE_S).kind == "add"
            peer.close()
            assert fetch.next(DEADLINE_S).kind == "remove"
    finally:
        os.close(writer)
        os.waitpid(child, 0)
