"""A Jet peer on plain asyncio streams: a 32-bit length, then JSON. Shows how little a client needs; imports no jetbus.

A `Peer` asks (`request`), tells (`notify`), answers for what it owns (`add`) and hears events (`fetch`). Requests and
events are handled one after the other, in the order they came. The end of this file is what the commands share.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import struct
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Self

ADDRESS = "localhost:11122"
LENGTH = struct.Struct(">I")
ANSWER_WITHIN_S = 8.0

Handler = Callable[[Any], Any]
"""Gets what is asked and gives the result, or raises `Refused`."""


class NoDaemon(Exception):
    """There is no daemon, or no longer; the text says where and what to do."""


class Refused(Exception):
    """An error that was answered: a code, a message and perhaps data."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.wire: dict[str, Any] = {"code": code, "message": message} | ({} if data is None else {"data": data})

    def __str__(self) -> str:
        data = self.wire.get("data")
        reasons = data if isinstance(data, dict) else {}
        for key, sentence in SENTENCES.items():
            if key in reasons:
                return sentence.format(json.dumps(reasons[key], ensure_ascii=False))
        if isinstance(reasons.get("invalidArgument"), dict):
            return str(reasons["invalidArgument"].get("message"))
        return str(self.wire["message"]) + ("" if data is None else f": {json.dumps(data, ensure_ascii=False)}")


SENTENCES = {
    "pathNotExists": "there is no {} on the bus; examples/watch.py shows what there is",
    "pathAlreadyExists": "{} is taken by another state, method or node; remove that or choose another path",
    "pathIsNotState": "{} is a method; use examples/call.py",
    "pathIsNotMethod": "{} is a state; use examples/set.py",
    "fetchOnly": "{} can only be watched; its owner accepts no set",
    "noAccess": "{} is only open to users of a certain group",
}


class Peer:
    """One connection to a daemon. Use `async with Peer(address, name) as peer`."""

    def __init__(self, address: str, name: str) -> None:
        self.address, self.name = address, name
        self._ids = itertools.count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._handlers: dict[str, Handler] = {}
        """By path what is asked of this peer, by fetch id what it is told."""

    async def __aenter__(self) -> Self:
        host, _, port = self.address.rpartition(":")
        try:
            self._reader, self._writer = await asyncio.open_connection(host.strip("[]") or "localhost", int(port))
        except (OSError, ValueError, OverflowError):
            raise NoDaemon(
                f"no Jet daemon answers at {self.address}; start one (make demo or jetd), or say where it is with --tcp"
            ) from None
        self._listening = asyncio.create_task(self._listen())
        await self.request("config", {"name": self.name})
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.cancel()
        self._writer.close()

    async def request(self, method: str, params: Any) -> Any:
        """Ask the daemon; gives the result or raises `Refused`."""
        number, answer = next(self._ids), asyncio.get_running_loop().create_future()
        self._open[number] = answer
        self._send({"id": number, "method": method, "params": params})
        await asyncio.wait((answer, self._listening), timeout=ANSWER_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise NoDaemon(
                f"what listens at {self.address} does not answer as a Jet daemon does; is it another program?"
            )
        return answer.result()

    def notify(self, method: str, params: Any) -> None:
        """Tell the daemon; nothing is answered."""
        self._send({"method": method, "params": params})

    async def drain(self) -> None:
        """Wait until the daemon has taken most of what was sent."""
        try:
            await self._writer.drain()
        except OSError:
            await self.ended()

    async def add(self, path: str, handler: Handler | None = None, **params: Any) -> None:
        """Hang a state (with `value`) or a method into the bus. A state without a handler can only be watched."""
        if handler is not None:
            self._handlers[path] = handler
        await self.request("add", {"path": path, **params, **({} if handler else {"fetchOnly": True})})

    async def fetch(self, fetch_id: str, rule: dict[str, Any], on_event: Handler) -> None:
        """Hear of all that the rule matches, from now on and what there is already."""
        self._handlers[fetch_id] = on_event
        await self.request("fetch", {"id": fetch_id, **rule})

    async def ended(self) -> NoReturn:
        """Wait until the connection ends."""
        await asyncio.wait((self._listening,))
        self._listening.result()
        raise NoDaemon(f"the daemon at {self.address} has closed the connection; start it again and then this command")

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
        if not self._writer.is_closing():
            self._writer.write(LENGTH.pack(len(data)) + data)

    async def _listen(self) -> None:
        try:
            while True:
                (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                self._receive(json.loads(await self._reader.readexactly(length), parse_int=_read_int))
        except (OSError, EOFError, ValueError):
            return

    def _receive(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            answer = self._open.pop(message.get("id", 0), None)
            if answer is not None and not answer.done():
                _settle(answer, message)
            return
        handler = self._handlers.get(message["method"])
        if handler is None:
            return
        try:
            outcome = {"result": handler(message["params"])}
        except Refused as refused:
            outcome = {"error": refused.wire}
        if "id" in message:
            self._send({"id": message["id"], **outcome})


def _read_int(digits: str) -> int | float:
    """Whole numbers of any length: Python refuses to read very long ones."""
    return int(digits) if len(digits) < 1000 else float(digits)


def _settle(answer: asyncio.Future[Any], message: dict[str, Any]) -> None:
    if "error" in message:
        error = message["error"]
        answer.set_exception(Refused(error["code"], error["message"], error.get("data")))
    else:
        answer.set_result(message.get("result"))


# -- what the commands share


def command_line(description: str) -> argparse.ArgumentParser:
    """A parser with the one option every command has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--tcp", metavar="HOST:PORT", default=ADDRESS, help=f"the daemon's TCP address ({ADDRESS})")
    return parser


def read_json(text: str) -> Any:
    """A JSON text of the command line."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not JSON; a text takes quotes inside quotes: '\"{text}\"'"
        ) from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def run(main: Coroutine[Any, Any, None]) -> NoReturn:
    """Run a command. Exit code 0 is success, 1 a refusal, 2 a wrong command line, 3 no daemon, 130 Ctrl-C."""
    try:
        asyncio.run(main)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read us has seen enough
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Refused as refused:
        sys.exit(f"refused: {refused}")
    except NoDaemon as problem:
        print(problem, file=sys.stderr)
        sys.exit(3)
    sys.exit(0)
