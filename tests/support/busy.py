"""An owner that changes a state 5,000 times a second, and what readers of its journal must find."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

import jetbus

PATH = "busy"
CHANGES_PER_S = 5_000
CHANGES_BEFORE = 25_000
"""More than a page, so that a reader asks again while the owner goes on."""
_STEPS_PER_S = 100


class BusyOwner:
    """A state that is 0, 1, 2 and so on, in a thread, until the ``with`` block ends."""

    def __init__(self, url: str) -> None:
        self._peer = jetbus.Peer(url, name="busy owner")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._change)

    def __enter__(self) -> Self:
        self._peer.connect()
        self._state = self._peer.add_state(PATH, 0)
        for number in range(1, CHANGES_BEFORE):
            self._state.change(number)
        self._peer.info()
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._peer.close()

    def _change(self) -> None:
        number = CHANGES_BEFORE
        while not self._stop.wait(1 / _STEPS_PER_S):
            for _ in range(CHANGES_PER_S // _STEPS_PER_S):
                self._state.change(number)
                number += 1


def check_reader(url: str, read: Callable[[], Sequence[Any]]) -> None:
    """Check that a reader ends with the values that there were when it was asked: all of them, or just the last."""
    with jetbus.Peer(url) as peer:
        before: int = peer.get(PATH)
        peer.call("$jet/journal/offsets")  # writes all of it to the files
        found = list(read())
        after: int = peer.get(PATH)
    assert before >= CHANGES_BEFORE - 1
    assert before <= found[-1] <= after
    if len(found) > 1:
        assert found == list(range(found[-1] + 1))
