"""Running a bridge: to its end, in a thread or a process, and with a slow near daemon."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
import threading

import pytest

import jetbus
from jetbus import PeerAsync
from jetbus.bridge import Bridge, Phase, Status, run_bridge
from jetbus.bridge import bridge as bridge_module
from jetbus.testing import RunningDaemon
from support.bridges import DEADLINE_S, Seen, run, until
from support.daemon import Daemon


def test_run_bridge(far: RunningDaemon, near: RunningDaemon) -> None:
    """A bridge runs in a thread until it is told to stop, and says how things are."""
    received: queue.Queue[Status] = queue.Queue()
    stop = threading.Event()
    thread = threading.Thread(
        target=run_bridge, args=(far.url, near.url), kwargs={"prefix": "p/", "stop": stop, "on_status": received.put}
    )
    with jetbus.Peer(far.url) as owner, jetbus.Peer(near.url) as client:
        owner.add_state("a", 1)
        thread.start()
        phases = [received.get(timeout=DEADLINE_S) for _ in range(2)]
        assert phases == [Status(Phase.MOUNTING), Status(Phase.MOUNTED, 1)]
        assert client.get_all("p/a") == {"p/a": 1}
        stop.set()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        assert received.get(timeout=DEADLINE_S).phase is Phase.STOPPED
        mirror = client.mirror().ready()
        run(until(lambda: not mirror))


def test_stop_while_waiting(far: RunningDaemon, near: RunningDaemon) -> None:
    """A bridge that waits for its daemons can be told to stop, too."""
    far.stop()
    stop = threading.Event()
    thread = threading.Thread(
        target=run_bridge, args=(far.url, near.url), kwargs={"prefix": "p/", "stop": stop, "wait": True}
    )
    thread.start()
    stop.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_run_bridge_fails(far: RunningDaemon, near: RunningDaemon) -> None:
    """Without waiting, a daemon that is not there ends it with the error."""
    far.stop()
    with pytest.raises(jetbus.NotConnected):
        run_bridge(far.url, near.url, prefix="p/")


PROGRAM = """
import sys
from jetbus.bridge import run_bridge
try:
    run_bridge(*sys.argv[1:3], prefix="p/", on_status=lambda status: print(status, flush=True))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_interrupted(far: RunningDaemon, near: RunningDaemon) -> None:
    """Ctrl-C ends a bridge cleanly."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, far.url, near.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["mounting\n", "mounted, 0 states and methods\n"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (out, err, process.returncode) == ("stopped\ninterrupted\n", "", 0)
    with jetbus.Peer(near.url) as client:
        mirror = client.mirror().ready()
        run(until(lambda: not mirror))


def test_killed_bridge(far: RunningDaemon, near: RunningDaemon) -> None:
    """A killed bridge leaves nothing behind on either bus."""
    with jetbus.Peer(far.url) as owner, jetbus.Peer(near.url) as client:
        owner.add_state("a", 1)
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, far.url, near.url], stdout=subprocess.DEVNULL)
        client.wait_for("p/a", timeout_s=DEADLINE_S)
        mirrors = [owner.mirror().ready(), client.mirror().ready()]
        process.send_signal(signal.SIGKILL)
        process.wait()
        run(until(lambda: [sorted(mirror) for mirror in mirrors] == [["a"], []]))


def test_callback_that_fails(far: RunningDaemon, near: RunningDaemon) -> None:
    """A callback that fails is logged and hurts nobody."""

    def fail(_status: Status) -> None:
        raise RuntimeError("no")

    async def case() -> None:
        async with Bridge(far.url, near.url, prefix="p/", on_status=fail) as bridge:
            assert bridge.status.phase is Phase.MOUNTED

    run(case())


def test_wait_ends_with_stop(far: RunningDaemon, near: RunningDaemon) -> None:
    """``wait`` returns when the bridge is stopped; stopping twice does no harm."""

    async def case() -> None:
        bridge = Bridge(far.url, near.url, prefix="p/")
        await bridge.start()
        waiting = asyncio.ensure_future(bridge.wait())
        await bridge.stop()
        await waiting
        await bridge.stop()

    run(case())


def test_slow_near_daemon(far: RunningDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the near daemon takes nothing newer values replace older ones; then it is told how all is by now."""
    monkeypatch.setattr(bridge_module, "UNSENT_BYTES_MAX", 100_000)
    big = "x" * 100_000
    with Daemon.start() as near:
        near_url = f"jet://{near.listens['tcp']}"

        async def case() -> None:
            async with PeerAsync(far.url) as owner, PeerAsync(near_url) as client:
                states = [await owner.add_state(f"{number}", "", on_set=lambda _value: None) for number in range(5)]
                answers: list[asyncio.Future[str]] = []

                def answer_later() -> asyncio.Future[str]:
                    answers.append(asyncio.get_running_loop().create_future())
                    return answers[0]

                await owner.add_method("ask", answer_later)
                async with Bridge(far.url, near_url, prefix="p/") as bridge:
                    mirror = await client.mirror(starts_with="p/").ready()
                    asking = asyncio.ensure_future(client.call("p/ask", timeout_s=60))
                    await until(lambda: answers)
                    os.kill(near.process.pid, signal.SIGSTOP)
                    try:
                        for turn in range(100):
                            for state in states:
                                state.change(f"{turn} {big}")
                            await owner.info()
                        await bridge.far.info()
                        assert bridge.conflated > 200
                        assert bridge.near.unsent_bytes < 10_000_000
                        for state in states[:3]:
                            await state.remove()
                        await owner.add_state("1", "read-only")
                        await owner.add_method("2", lambda: None)
                        await owner.add_state("new", 1)
                        answers[0].set_result("answer")
                    finally:
                        os.kill(near.process.pid, signal.SIGCONT)
                    assert await asking == "answer"
                    # An answer overtakes nothing: all of this went out before it.
                    assert mirror.copy().keys() == {
                        f"p/{name}" for name in ("1", "2", "3", "4", "new", "ask", "$bridge")
                    }
                    assert mirror["p/3"] == mirror["p/4"] == f"99 {big}"
                    events = {event.path: event for event in (await Seen(client).ready()).events}
                    assert (events["p/1"].value, events["p/1"].fetch_only) == ("read-only", True)
                    assert events["p/2"].is_method
                    assert not events["p/3"].fetch_only

        run(case())
