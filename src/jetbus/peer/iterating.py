"""The loop over a fetch: compiled where it could be built (``_iterating.c``), else an async generator.

Both take what is there, event by event, and wait for more by the fetch's own ``__anext__``. What a loop has not taken
stays for the next one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol


class Iterated(Protocol):
    """What a loop needs of a fetch."""

    _taken: Iterator[Any]
    """The events that are there; another one whenever there are more."""

    async def __anext__(self) -> Any: ...


async def iterate_in_python(fetch: Iterated) -> AsyncGenerator[Any]:
    """The loop without the compiled part."""
    while True:
        for event in fetch._taken:
            yield event
        try:
            event = await fetch.__anext__()
        except StopAsyncIteration:
            return
        yield event


iterate: Callable[[Iterated], AsyncIterator[Any]] = iterate_in_python
with suppress(ImportError):
    from jetbus.peer._iterating import Iterating

    iterate = Iterating

COMPILED = iterate is not iterate_in_python
"""Whether the loop is the compiled one."""
