"""A counterpart that is no whole daemon: it notes every message and answers, or fails to, as told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Collection
from typing import Any

INFO = {"name": "jetbus", "features": {"fetch": "full"}}


class Listener:
    """Messages received, and the number of connections."""

    def __init__(self, *, silent: Collection[str], hang_up: bool) -> None:
        self.heard: list[Any] = []
        self.connections = 0
        self.url = ""
        self._silent = silent
        self._hang_up = hang_up
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if self._hang_up:
                await reader.read(1)
            while not self._hang_up:
                message = json.loads(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))
                self.heard.append(message)
                for request in message if isinstance(message, list) else [message]:
                    if "id" in request and request["method"] not in self._silent:
                        self.say(writer, {"id": request["id"], "result": INFO if request["method"] == "info" else True})
        writer.close()

    @staticmethod
    def say(writer: asyncio.StreamWriter, message: Any) -> None:
        text = json.dumps(message).encode()
        writer.write(len(text).to_bytes(4) + text)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@contextlib.asynccontextmanager
async def listening(*, silent: Collection[str] = (), hang_up: bool = False) -> AsyncIterator[Listener]:
    """Listen on a free port; requests in ``silent`` get no answer, with ``hang_up`` every connection is closed."""
    listener = Listener(silent=silent, hang_up=hang_up)
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0)
    listener.url = f"jet://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield listener
        listener.close()
