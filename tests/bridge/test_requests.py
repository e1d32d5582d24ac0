"""Set and call go through to the far owner, and its answer comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import jetbus
from jetbus import Adapted, Blob, PeerAsync, Refused, SetResult
from jetbus.bridge import Bridge
from jetbus.bridge import ends as near_end
from jetbus.errors import JetError
from jetbus.json_types import ErrorObject
from jetbus.testing import RunningDaemon, running_daemon
from support.bridges import raised, run, until


@asynccontextmanager
async def mounted(
    far: RunningDaemon, near: RunningDaemon, **options: Any
) -> AsyncIterator[tuple[PeerAsync, PeerAsync]]:
    """An owner on the far bus, a client on the near one, and a bridge."""
    bridge = Bridge(far.url, near.url, prefix="p/", **options)
    async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client, bridge:
        yield owner, client


def _refuse(error: Exception) -> Any:
    def handler(*_args: Any) -> Any:
        raise error

    return handler


SETS: dict[str, tuple[Any, SetResult, Any]] = {
    "accepted": (lambda _value: None, SetResult(5), 5),
    "adapted": (lambda _value: 3, SetResult(3, 1), 3),
    "adapted, and why": (lambda _value: Adapted(3, "at most 3"), SetResult(3, 1, "at most 3"), 3),
    "unchanged": (lambda _value: jetbus.UNCHANGED, SetResult(0), 0),
    "bytes": (lambda _value: Blob(b"x"), SetResult(b"x", 1), b"x"),
}


@pytest.mark.parametrize(("on_set", "result", "value"), SETS.values(), ids=SETS)
def test_set(far: RunningDaemon, near: RunningDaemon, on_set: Any, result: SetResult, value: Any) -> None:
    """The owner's answer to a set comes back as it is, after the change."""

    async def case() -> None:
        async with mounted(far, near) as (owner, client):
            state = await owner.add_state("a", 0, on_set=on_set)
            mirror = await client.mirror("p/a").ready()
            await until(lambda: "p/a" in mirror)
            assert await client.set("p/a", 5) == result
            assert mirror["p/a"] == value
            assert state.value == value
            through = await client.set("p/a", 5, value_as_result=True)
            assert through == await owner.set("a", 5, value_as_result=True)

    run(case())


def _own_words(code: int) -> Refused:
    return Refused("too hot", {"limit": 80, "path": "a"}, code=code)


ERRORS: dict[str, tuple[Exception, ErrorObject]] = {
    "own words": (_own_words(1001), _own_words(1001).wire()),
    "a code of JSON-RPC": (_own_words(-32602), _own_words(-32602).wire()),
    "without data": (Refused("no"), {"code": -32602, "message": "no", "data": None}),
    "data of any kind": (Refused("no", [1], code=-1), {"code": -1, "message": "no", "data": [1]}),
}


@pytest.mark.parametrize(("error", "received"), ERRORS.values(), ids=ERRORS)
def test_errors(far: RunningDaemon, near: RunningDaemon, error: Exception, received: dict[str, Any]) -> None:
    """The owner's error comes back with its code, message and data, for set and call."""

    async def case() -> None:
        async with mounted(far, near) as (owner, client):
            await owner.add_state("a", 0, on_set=_refuse(error))
            await owner.add_method("b", _refuse(error))
            await client.wait_for("p/b")
            for problem in (await raised(client.set("p/a", 1)), await raised(client.call("p/b"))):
                assert isinstance(problem, Refused)
                assert {"data": None, **problem.wire()} == received

    run(case())


ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "none": ((), {}),
    "positional": ((1, None, [2]), {}),
    "named": ((), {"a": 1, "b": {"c": None}}),
    "bytes": ((b"\x00", b"\xff"), {}),
    "named bytes": ((), {"a": b"\x00"}),
}


@pytest.mark.parametrize(("args", "named"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_call(far: RunningDaemon, near: RunningDaemon, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Arguments arrive as they were given, and the result comes back."""
    heard: list[Any] = []

    def method(*args: Any, **named: Any) -> Any:
        heard.append((args, named))
        return Blob(b"result", mime="text/x")

    async def case() -> None:
        async with mounted(far, near) as (owner, client):
            await owner.add_method("run", method)
            await client.wait_for("p/run")
            result = await client.call("p/run", *args, **named)
            assert (result, result.mime) == (b"result", "text/x")
            assert heard == [(args, named)]

    run(case())


def test_read_only(far: RunningDaemon, near: RunningDaemon) -> None:
    """A read-only state refuses a set on the near bus as on the far one."""

    async def case() -> None:
        async with mounted(far, near) as (owner, client):
            await owner.add_state("a", 0)
            await client.wait_for("p/a")
            problem = await raised(client.set("p/a", 1))
            assert isinstance(problem, jetbus.ReadOnly)
            assert problem.path == "p/a"

    run(case())


def test_errors_of_the_far_daemon_name_the_near_path(far: RunningDaemon, near: RunningDaemon) -> None:
    """Errors of the far daemon name the path that the requester knows."""

    async def case() -> None:
        async with mounted(far, near) as (owner, client):
            await owner.add_state("a", 0, on_set=_refuse(jetbus.NotFound("a")))
            await client.wait_for("p/a")
            problem = await raised(client.set("p/a", 1))
            assert isinstance(problem, jetbus.NotFound)
            assert problem.data == {"pathNotExists": "p/a"}

    run(case())


def test_timeouts() -> None:
    """A requester's own timeout holds through the bridge, whether shorter or longer than those of the daemons."""

    async def case(far: RunningDaemon, near: RunningDaemon) -> None:
        async with mounted(far, near) as (owner, client):
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await owner.add_state("slow", 0, on_set=lambda _value: asyncio.shield(answer))
            await client.wait_for("p/slow")
            patient = asyncio.ensure_future(client.set("p/slow", 1, timeout_s=60))
            short, usual = await asyncio.gather(
                raised(client.set("p/slow", 2, timeout_s=0.05)), raised(client.set("p/slow", 3))
            )
            for problem in (short, usual):
                assert isinstance(problem, jetbus.TimedOut)
                assert problem.path == "p/slow"
            answer.set_result(None)
            assert await patient == SetResult(1)

    with running_daemon(timeout_s=0.3) as far, running_daemon(timeout_s=0.3) as near:
        run(case(far, near))


def test_patience(far: RunningDaemon, near: RunningDaemon) -> None:
    """The far owner is waited for as long as the bridge's patience lasts, at most."""

    async def case() -> None:
        async with mounted(far, near, patience_s=0.05) as (owner, client):
            never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await owner.add_method("slow", lambda: asyncio.shield(never))
            await client.wait_for("p/slow")
            problem = await raised(client.call("p/slow", timeout_s=3600))
            assert isinstance(problem, jetbus.TimedOut)
            assert problem.path == "p/slow"
            never.cancel()

    run(case())


def test_timeout_of_mounts(far: RunningDaemon, near: RunningDaemon) -> None:
    """Requesters who say nothing wait as long as the bridge says when it adds."""

    async def case() -> None:
        async with mounted(far, near, timeout_s=0.05) as (owner, client):
            never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await owner.add_method("slow", lambda: asyncio.shield(never))
            await client.wait_for("p/slow")
            assert isinstance(await raised(client.call("p/slow")), jetbus.TimedOut)
            never.cancel()

    run(case())


def test_requests_max(far: RunningDaemon, near: RunningDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many requests may wait for one owner; the next is refused at once, others are not concerned."""
    monkeypatch.setattr(near_end, "REQUESTS_MAX", 3)

    async def case() -> None:
        async with mounted(far, near) as (owner, client):
            answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            await owner.add_method("slow", lambda: asyncio.shield(answer))
            await owner.add_method("fast", lambda: 1)
            await client.wait_for("p/fast")
            waiting = [asyncio.ensure_future(client.call("p/slow", timeout_s=60)) for _ in range(3)]
            problem = await raised(client.call("p/slow"))
            assert "3 requests to p/slow wait" in str(problem)
            assert await client.call("p/fast") == 1
            answer.set_result(7)
            assert await asyncio.gather(*waiting) == [7, 7, 7]
            assert await client.call("p/slow") == 7

    run(case())


def test_many_at_once(far: RunningDaemon, near: RunningDaemon) -> None:
    """Many requests under way have each their own answer."""

    async def case() -> None:
        async with mounted(far, near) as (owner, client):
            await owner.add_method("double", lambda number: 2 * number)
            await client.wait_for("p/double")
            results = await asyncio.gather(*(client.call("p/double", number) for number in range(500)))
            assert results == [2 * number for number in range(500)]

    run(case())


def test_notifications(far: RunningDaemon, near: RunningDaemon) -> None:
    """A set for whose answer nobody waits is passed on as one."""

    async def case() -> None:
        async with mounted(far, near) as (owner, client):
            state = await owner.add_state("a", 0, on_set=lambda _value: None)
            await client.wait_for("p/a")
            client.session.send(b'{"method":"set","params":{"path":"p/a","value":5}}')
            assert (await client.wait_for("p/a value=5", timeout_s=10)).value == 5
            assert state.value == 5

    run(case())


async def _owner_closes(owner: PeerAsync, _far: RunningDaemon) -> None:
    await owner.close()


async def _daemon_stops(_owner: PeerAsync, far: RunningDaemon) -> None:
    await asyncio.to_thread(far.stop)


@pytest.mark.parametrize("loss", [_owner_closes, _daemon_stops])
def test_loss_under_way(far: RunningDaemon, near: RunningDaemon, loss: Any) -> None:
    """Requesters are answered at once if the far owner or its whole bus is lost."""

    async def case() -> None:
        async with mounted(far, near) as (owner, client):
            asked = asyncio.Event()

            async def never() -> None:
                asked.set()
                await asyncio.get_running_loop().create_future()

            await owner.add_method("slow", never)
            await client.wait_for("p/slow")
            call = asyncio.ensure_future(raised(client.call("p/slow", timeout_s=3600)))
            await asked.wait()
            await loss(owner, far)
            problem = await call
            assert isinstance(problem, JetError)
            assert isinstance(problem, jetbus.OwnerLost)

    run(case())


def test_answers_on_another_connection(far: RunningDaemon, near: RunningDaemon) -> None:
    """An answer that comes when the near daemon is another one is not taken for that to another request."""

    async def case() -> None:
        async with mounted(far, near) as (owner, client):
            answers: list[asyncio.Future[str]] = []

            def wait() -> Any:
                answers.append(asyncio.get_running_loop().create_future())
                return answers[-1]

            await owner.add_method("slow", wait)
            await client.wait_for("p/slow")
            first = asyncio.ensure_future(raised(client.call("p/slow", timeout_s=60)))
            await until(lambda: len(answers) == 1)
            await asyncio.to_thread(near.restart)
            assert isinstance(await first, jetbus.ConnectionLost)
            await until(lambda: client.connected)
            await client.wait_for("p/slow", timeout_s=20)
            second = asyncio.ensure_future(client.call("p/slow", timeout_s=60))
            await until(lambda: len(answers) == 2)
            answers[0].set_result("first")
            await owner.info()
            answers[1].set_result("second")
            assert await second == "second"

    run(case())
