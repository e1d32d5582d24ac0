"""What the brain asks of the world outside: somebody who runs what would block, and somebody who knows the users.

The way out to a peer, ``Outbox``, is in ``audience``, because sharing it is what audiences are about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from jetbus.bus.access import Auth
from jetbus.errors import JetError


class Worker(Protocol):
    """Runs for the bus what would block it or must wait."""

    def run(self, work: Callable[[], Any], done: Callable[[Any], None], /) -> None:
        """Run ``work`` aside, then ``done`` with what it returned or the ``JetError`` it raised."""

    def later(self, delay_s: float, then: Callable[[], None], /) -> None:
        """Run ``then`` after a while."""

    def in_turn(self, then: Callable[[], None], /) -> None:
        """Run ``then``, which begins a fetch, when it is its peer's turn."""

    def be_fair(self) -> None:
        """A fetch has ended: the order between the messages of several peers matters for a moment."""


class Users(Protocol):
    """The users that may authenticate. All calls may block; refusals are ``JetError``s."""

    def authenticate(self, name: str, password: str) -> Auth: ...

    def passwd(self, actor: str | None, name: str, password: str) -> None: ...

    def add_user(self, actor: str | None, name: str, password: str, groups: list[str]) -> None: ...

    def remove_user(self, actor: str | None, name: str) -> None: ...


class AtOnce:
    """A worker without threads or clock: runs everything at once and waits for nothing."""

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        outcome: Any
        try:
            outcome = work()
        except JetError as error:
            outcome = error
        done(outcome)

    def later(self, _delay_s: float, then: Callable[[], None]) -> None:
        then()

    def in_turn(self, then: Callable[[], None]) -> None:
        then()

    def be_fair(self) -> None: ...


class Nowhere:
    """The outbox of the daemon's own session, which is never sent anything."""

    slow = False

    def put(self, frame: bytes) -> None: ...

    def batch(self) -> None: ...

    def put_chunk(self, audience: Any, chunk: Any) -> None: ...

    def lend(self, _audience: Any) -> list[bytes]:
        return []

    def put_event(self, audience: Any, path: str, kind: str, frame: bytes) -> None: ...

    def forget(self, audience: Any) -> None: ...
