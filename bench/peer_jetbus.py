"""The peers of jetbus as measured clients, and their counterparts; for bench/peers.py.

    python peer_jetbus.py PORT owner                                           answers, until it is ended
    python peer_jetbus.py PORT set|call|notified|changes SECONDS WARM_SECONDS  PeerAsync; the same as peer_nodejet.cjs
    python peer_jetbus.py PORT callback SECONDS WARM_SECONDS                   notified, by a callback instead of a loop
    python peer_jetbus.py PORT blocking|raw SECONDS WARM_SECONDS               set after set: Peer, a bare socket

A client prints one line of JSON: how many messages, in how much CPU time of this process and how much time. With
``--loop asyncio`` PeerAsync runs on Python's own event loop instead of uvloop.
"""

import argparse
import asyncio
import json
import socket
import struct
import time
from collections.abc import Awaitable, Callable

import jetbus
from jetbus.loops import new_loop

WINDOW = 100  # requests under way
BURST = 1000  # changes between two confirmations
BURSTS = 4  # bursts of notifications under way
STATES = 10_000  # states that change in turn, so that none is conflated


class Meter:
    """Counts messages; the measured time starts after the warm-up."""

    def __init__(self, seconds: float, warm_s: float) -> None:
        self.count = 0
        self.running = True
        self._seconds, self._warm_s = seconds, warm_s
        self._from = (0, 0.0, 0.0)
        self.result: dict[str, float] = {}

    def _now(self) -> tuple[int, float, float]:
        return self.count, time.process_time(), time.perf_counter()

    def start(self) -> None:
        self._from = self._now()

    def stop(self) -> None:
        count, cpu_s, wall_s = (now - then for now, then in zip(self._now(), self._from, strict=True))
        self.result = {"count": count, "cpu_s": cpu_s, "wall_s": wall_s}
        self.running = False

    def run_on(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(self._warm_s, self.start)
        loop.call_later(self._warm_s + self._seconds, self.stop)

    def run_blocking(self, turn: Callable[[int], object]) -> None:
        """One turn after the other."""
        for seconds, then in ((self._warm_s, self.start), (self._seconds, self.stop)):
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                for _ in range(10):
                    turn(self.count)
                    self.count += 1
            then()


# -- counterparts of the clients


async def own(url: str) -> None:
    async with jetbus.PeerAsync(url) as peer:
        await peer.add_state("bench/value", 0, on_set=lambda _value: jetbus.UNCHANGED)
        await peer.add_method("bench/echo", lambda value: value)
        states = await asyncio.gather(*(peer.add_state(f"bench/states/{i}", 0) for i in range(STATES)))
        told = 0

        def pump(count: int) -> int:
            nonlocal told
            for number in range(told, told + count):
                states[number % STATES].change(number + 1)
            told += count
            return told

        await peer.add_method("bench/pump", pump)
        print("ready", flush=True)
        await asyncio.Event().wait()


# -- PeerAsync


async def windows(many: int, work: Callable[[], Awaitable[None]]) -> None:
    """So many loops at once, each of which waits for its own answer."""
    await asyncio.gather(*(work() for _ in range(many)))


async def measure_set(peer: jetbus.PeerAsync, meter: Meter) -> None:
    async def work() -> None:
        while meter.running:
            await peer.set("bench/value", meter.count)
            meter.count += 1

    await windows(WINDOW, work)


async def measure_call(peer: jetbus.PeerAsync, meter: Meter) -> None:
    async def work() -> None:
        while meter.running:
            await peer.call("bench/echo", meter.count)
            meter.count += 1

    await windows(WINDOW, work)


async def pump(peer: jetbus.PeerAsync, meter: Meter) -> int:
    """Let the owner change its states until the time is up; gives how many changes that were."""

    async def work() -> None:
        while meter.running:
            await peer.call("bench/pump", BURST)

    start = await peer.call("bench/pump", 0)
    await windows(BURSTS, work)
    end = await peer.call("bench/pump", 0)
    await asyncio.sleep(0)
    told: int = end - start
    return told


def check_all_came(meter: Meter, told: int) -> None:
    if meter.count != told:
        raise RuntimeError(f"{meter.count} of {told} changes arrived")


async def measure_notified(peer: jetbus.PeerAsync, meter: Meter) -> None:
    async def read(fetch: jetbus.FetchAsync) -> None:
        async for event in fetch:
            if event.kind == "change":
                meter.count += 1

    async with peer.fetch(starts_with="bench/states/") as fetch:
        reading = asyncio.create_task(read(fetch))
        told = await pump(peer, meter)
    await reading
    check_all_came(meter, told)


async def measure_callback(peer: jetbus.PeerAsync, meter: Meter) -> None:
    def hear(event: jetbus.Event) -> None:
        if event.kind == "change":
            meter.count += 1

    async with peer.fetch(starts_with="bench/states/", callback=hear):
        told = await pump(peer, meter)
    check_all_came(meter, told)


async def measure_changes(peer: jetbus.PeerAsync, meter: Meter) -> None:
    state = await peer.add_state("bench/mine", 0)
    while meter.running:
        for i in range(BURST):
            state.change(meter.count + i)
        await peer.info()
        meter.count += BURST


async def run_async(work: Callable[[jetbus.PeerAsync, Meter], Awaitable[None]], url: str, meter: Meter) -> None:
    async with jetbus.PeerAsync(url) as peer:
        meter.run_on(asyncio.get_running_loop())
        await work(peer, meter)


# -- one set after the other


def measure_blocking(port: int, meter: Meter) -> None:
    with jetbus.Peer(f"jet://127.0.0.1:{port}") as peer:
        meter.run_blocking(lambda number: peer.set("bench/value", number))


def measure_raw(port: int, meter: Meter) -> None:
    """The same frames by a bare blocking socket."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def turn(number: int) -> None:
            frame = b'{"id":%d,"method":"set","params":{"path":"bench/value","value":%d}}' % (number, number)
            connection.sendall(struct.pack(">I", len(frame)) + frame)
            answer = connection.recv(65536)
            while len(answer) < 4 or len(answer) < 4 + struct.unpack_from(">I", answer)[0]:
                answer += connection.recv(65536)
            if not answer.endswith(b'"result":{}}'):
                raise RuntimeError(f"not answered well: {answer!r}")

        meter.run_blocking(turn)


ASYNC = {
    "set": measure_set,
    "call": measure_call,
    "notified": measure_notified,
    "callback": measure_callback,
    "changes": measure_changes,
}
BLOCKING = {"blocking": measure_blocking, "raw": measure_raw}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("case", choices=["owner", *ASYNC, *BLOCKING])
    parser.add_argument("seconds", type=float, nargs="?", default=1.0)
    parser.add_argument("warm_s", type=float, nargs="?", default=0.3)
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    args = parser.parse_args()
    url = f"jet://127.0.0.1:{args.port}"
    meter = Meter(args.seconds, args.warm_s)
    if args.case in BLOCKING:
        BLOCKING[args.case](args.port, meter)
    else:
        work = own(url) if args.case == "owner" else run_async(ASYNC[args.case], url, meter)
        with asyncio.Runner(loop_factory=new_loop if args.loop == "uvloop" else None) as runner:
            runner.run(work)
    print(json.dumps(meter.result))


if __name__ == "__main__":
    main()
