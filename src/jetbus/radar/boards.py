"""Boards that the server offers: files of JSON in one directory, which the page can open by name.

A board of its own is kept by each browser, so nothing is ever written here. The page reads the boards with care, since
anybody may have written them; the server passes on whatever is JSON.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

BOARDS_MAX = 200
BOARD_BYTES_MAX = 1_000_000


def find_boards(directory: Path | None) -> list[str]:
    """Return the names of the board files in a directory, at most ``BOARDS_MAX``."""
    if directory is None or not directory.is_dir():
        return []
    files = (file for file in directory.glob("*.json") if file.is_file() and file.stat().st_size <= BOARD_BYTES_MAX)
    return sorted(file.stem for file in itertools.islice(files, BOARDS_MAX))


def make_routes(directory: Path | None) -> list[Route]:
    """Return the addresses of the boards in a directory; without one there are no boards."""

    async def list_boards(_request: Request) -> Response:
        return JSONResponse({"boards": await run_in_threadpool(find_boards, directory)})

    async def read_board(request: Request) -> Response:
        name = request.path_params["name"]
        # Only names that are listed: a name from an address never leads out of the directory.
        if directory is None or name not in await run_in_threadpool(find_boards, directory):
            return JSONResponse({"error": f"there is no board {name} here"}, status_code=404)
        try:
            text = await run_in_threadpool((directory / f"{name}.json").read_bytes)
            return JSONResponse(msgspec.json.decode(text))
        except (OSError, msgspec.MsgspecError) as problem:
            return JSONResponse({"error": f"the board {name} cannot be read: {problem}"}, status_code=503)

    return [Route("/api/boards", list_boards), Route("/api/boards/{name}", read_board)]
