"""A Jet daemon with a small simulated plant on its bus, to look at. `make demo` runs it.

python examples/plant.py [--for SECONDS] [--tcp HOST:PORT] [--ws HOST:PORT]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any, NoReturn

from physics import Limit, Plant
from rawpeer import NoDaemon, Peer, Refused, run

TCP, WS = "localhost:11122", "localhost:11123"
TICK_S = 0.2
READY_WITHIN_S = 20.0
STOP_WITHIN_S = 10.0
WARN_ADAPTED = 1


# -- the daemon

TCP_AND_WS_ONLY = ("--unix", "off", "--binary", "off", "--binary-unix", "off")


class Jetd:
    """A daemon of our own, in a process of its own."""

    def __init__(self, process: Process, listens: dict[str, str]) -> None:
        self.process = process
        self.listens = listens
        self._log = asyncio.create_task(_pass_on(process))

    @classmethod
    async def start(cls, tcp: str | None, ws: str | None) -> Jetd:
        """Start it where asked; without a wish at the usual ports or, where these are taken, at free ones."""
        if tcp or ws:
            return await cls._start("--tcp", tcp or "localhost:0", "--ws", ws or "localhost:0", *TCP_AND_WS_ONLY)
        try:
            return await cls._start("--tcp", TCP, "--ws", WS)
        except NoDaemon as problem:
            if "in use" not in str(problem):
                raise
            print(f"{problem}.\nThe demo takes free ports instead; mind the --tcp below.", file=sys.stderr)
        return await cls._start("--tcp", "localhost:0", "--ws", "localhost:0", *TCP_AND_WS_ONLY)

    @classmethod
    async def _start(cls, *options: str) -> Jetd:
        command = Path(sys.executable).with_name("jetd")
        if not command.exists():
            raise NoDaemon(f"there is no {command}; install the package first, make demo does it")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JET_")}
        process = await asyncio.create_subprocess_exec(
            command, *options, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environment, start_new_session=True
        )
        assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - they are pipes
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                ready = (await process.stdout.readline()).decode().split()
        except TimeoutError:
            process.kill()
            ready = []
        if ready[:1] != ["ready"]:
            said = (await process.stderr.read()).decode().strip()
            await process.wait()
            raise NoDaemon(said or "jetd did not start")
        return cls(process, dict(part.split("=", 1) for part in ready[1:]))

    async def stop(self) -> None:
        """Stop it and wait until it is gone."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)  # terminate() would take the exit code from asyncio
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        await self._log


async def _pass_on(process: Process) -> None:
    """What the daemon logs goes where we complain, too."""
    assert process.stderr is not None  # noqa: S101 - it is a pipe
    async for line in process.stderr:
        sys.stderr.buffer.write(line)
        sys.stderr.flush()


# -- the plant as a peer


class PlantPeer:
    """Hangs a plant into the bus, answers for it and tells what changes."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.plant = Plant()
        self.told = self.plant.values()
        self.changes = self.sets = self.calls = 0
        self.methods = {
            "plant/start": self._start,
            "plant/stop": self._stop,
            "plant/counter/reset": self._reset,
        }

    async def hang_in(self) -> None:
        """Add all states and methods."""
        limits = self.plant.limits()
        for path, value in self.told.items():
            limit = limits.get(path)
            await self.peer.add(path, self._setter(path, limit) if limit else None, value=value)
        for path, method in self.methods.items():
            await self.peer.add(path, method)

    async def live(self) -> NoReturn:
        """Let time pass and tell what has changed."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self.plant.step(min(now - last, 1.0))
            last = now
            self._tell()
            await self.peer.drain()

    def _tell(self) -> None:
        values = self.plant.values()
        for path, value in values.items():
            if value != self.told[path]:
                self.peer.notify("change", {"path": path, "value": value})
                self.changes += 1
        self.told = values

    # -- what others ask

    def _setter(self, path: str, limit: Limit) -> Any:
        def on_set(params: Any) -> dict[str, Any]:
            wanted = params["value"]
            if isinstance(wanted, bool) or not isinstance(wanted, int | float) or math.isnan(wanted):
                refuse(f"{path} takes a number from {limit.low:g} to {limit.high:g} {limit.unit}")
            taken = float(min(limit.high, max(limit.low, wanted)))
            limit.apply(taken)
            self.sets += 1
            self._tell()
            if taken == wanted:
                return {}
            return {"warning": {"code": WARN_ADAPTED, "message": f"{taken:g} {limit.unit} is the limit"}}

        return on_set

    def _start(self, args: Any) -> dict[str, Any]:
        return self._switch(args, on=True)

    def _stop(self, args: Any) -> dict[str, Any]:
        return self._switch(args, on=False)

    def _switch(self, args: Any, *, on: bool) -> dict[str, Any]:
        """`{}` is all pumps; `{"pumps": [1, 2]}` or `[1, 2]` is these."""
        everyone = [pump.number for pump in self.plant.pumps]
        numbers = args["pumps"] if isinstance(args, dict) and args.keys() == {"pumps"} else args or everyone
        if not isinstance(numbers, list) or not all(number in everyone for number in numbers):
            refuse(f"give pumps as a list of numbers out of {everyone}, or nothing for all of them")
        running = self.plant.switch(set(numbers), on)
        self.calls += 1
        self._tell()
        return {"running": running}

    def _reset(self, args: Any) -> dict[str, float]:
        """Nothing is all counters; a list names some."""
        names = args or list(self.plant.counters())
        if not isinstance(names, list) or not all(name in list(self.plant.counters()) for name in names):
            refuse(f"give a list of counters out of {list(self.plant.counters())}, or nothing for all of them")
        reached = self.plant.reset(names)
        self.calls += 1
        self._tell()
        return reached


def refuse(text: str) -> NoReturn:
    """Refuse in the form that node-jet clients know as InvalidArgument."""
    raise Refused(-32602, "Invalid params", {"invalidArgument": {"message": text}})


# -- the command


def how_to_look(owner: PlantPeer, listens: dict[str, str]) -> str:
    """What to try next, for another terminal."""
    python = Path(sys.executable)
    here = Path(__file__).parent
    with contextlib.suppress(ValueError):
        python, here = python.relative_to(Path.cwd()), here.resolve().relative_to(Path.cwd())
    where = "" if listens["tcp"].endswith(":11122") else f" --tcp {listens['tcp']}"

    def command(name: str, arguments: str) -> str:
        return f"  {python} {here / name}.py{where} {arguments}"

    return "\n".join(
        (
            f"{len(owner.told)} states and {len(owner.methods)} methods of a plant are on the bus of a jetd at"
            f" {listens['tcp']}. In another terminal:",
            command("watch", "plant/tank/") + "   # or '' for everything, '$jet/' for the daemon itself",
            command("set", "plant/pump/1/setpoint_rpm 1800"),
            command("set", "plant/valve/opening_percent 400") + "   # too much: see how the plant answers",
            command("call", "plant/stop '[1, 3]'") + "   # and plant/start",
            command("call", "plant/counter/reset"),
            f"  curl http://{listens['ws']}/metrics",
            "Pump 2 has a bad bearing now and then: watch plant/alarms. Ctrl-C ends the demo.",
        )
    )


async def demo(tcp: str | None, ws: str | None, for_s: float | None) -> None:
    """Run daemon and plant until a signal comes or the time is up; nothing is left behind."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    jetd = await Jetd.start(tcp, ws)
    try:
        async with Peer(jetd.listens["tcp"], "plant") as peer:
            owner = PlantPeer(peer)
            await owner.hang_in()
            print(how_to_look(owner, jetd.listens), flush=True)
            began = time.monotonic()
            tasks = [asyncio.create_task(part) for part in (owner.live(), peer.ended(), stopped.wait())]
            done, _ = await asyncio.wait(tasks, timeout=for_s, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in done:
                task.result()
            print(
                f"{len(owner.told)} states and {len(owner.methods)} methods lived {time.monotonic() - began:.1f} s:"
                f" {owner.changes} changes told, {owner.sets} sets and {owner.calls} calls answered"
            )
    finally:
        await jetd.stop()


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description="Start a Jet daemon with a small simulated plant on its bus.")
    parser.add_argument("--for", dest="for_s", type=seconds, metavar="SECONDS", help="end by itself after a while")
    parser.add_argument("--tcp", metavar="HOST:PORT", help=f"where the daemon listens for TCP ({TCP})")
    parser.add_argument("--ws", metavar="HOST:PORT", help=f"where it listens for WebSocket and HTTP ({WS})")
    given = parser.parse_args()
    run(demo(given.tcp, given.ws, given.for_s))


if __name__ == "__main__":
    main()
