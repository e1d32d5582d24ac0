"""What the daemon itself has on its bus: states that tell about it, methods that it serves. Nobody else may add there.

They are elements like all others, but their owner has no connection: a state is told from within, a method is called
here. They are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetbus.bus.outside import Nowhere, Worker
from jetbus.bus.session import Session
from jetbus.bus.tree import Element
from jetbus.errors import JetError
from jetbus.wire import binary, jsonrpc

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus

Method = Callable[[Session, Any], Callable[[], bytes]]
"""Who calls, the arguments -> the work to do aside, which gives a body; refuses by raising, now or later."""


class Own:
    """The daemon's own elements."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.session = Session(0, Nowhere())
        self._methods: dict[str, tuple[Method, Worker | None]] = {}

    def __len__(self) -> int:
        return len(self.session.elements)

    def has(self, element: Element) -> bool:
        """Whether an element is the daemon's own."""
        return element.owner is self.session

    def tell(self, path: str, value: bytes) -> None:
        """Add or change a state; an equal value is not told again."""
        element = self._bus.tree.elements.get(path)
        if element is None:
            self._bus.put_in(Element(path, jsonrpc.encode(path), value, self.session, fetch_only=True))
        elif element.value != value:
            self._bus.publish(element, value)

    def drop(self, path: str) -> None:
        """Remove a state."""
        element = self.session.elements.get(path)
        if element is not None:
            self._bus.take_out(element)

    def serve(self, path: str, method: Method, worker: Worker | None = None) -> None:
        """Add a method; its work is done by the bus's worker unless another one is given."""
        self._methods[path] = method, worker
        self._bus.put_in(Element(path, jsonrpc.encode(path), None, self.session, is_method=True))

    def call(self, session: Session, request_id: bytes, path: str, args: bytes) -> None:
        """A call of a method; what it does may take a while and is done aside."""
        method, worker = self._methods[path]
        work = method(session, jsonrpc.loads(args) if args else {})

        def done(outcome: Any) -> None:
            if session.gone or not request_id:
                return
            if isinstance(outcome, JetError):
                self._bus.answer_error(session, request_id, outcome)
            elif session.dialect.is_binary:
                session.send(binary.response(request_id, outcome))
            else:
                session.send(jsonrpc.result(request_id, binary.json_of(outcome)))

        (worker or self._bus.worker).run(work, done)
