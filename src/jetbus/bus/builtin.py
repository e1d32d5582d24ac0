"""Built-in elements: the states and methods of the daemon itself, below ``$jet``. No peer may add elements there.

They are elements like all others, but their owner is not a connected peer: the daemon sets their values directly, and
calls of their methods are handled here. They are not recorded in the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jetbus.bus.access import Access
from jetbus.bus.ports import DiscardingOutbox, Worker
from jetbus.bus.session import Session
from jetbus.bus.tree import Element
from jetbus.errors import JetError
from jetbus.json_types import Json
from jetbus.wire import binary, jsonrpc

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus

Method = Callable[[Session, Json], Callable[[], bytes]]
"""Function that takes caller and arguments and returns the work to run aside, which returns a body.

Both may raise a ``JetError`` to refuse the call.
"""


class Builtin:
    """Elements of the daemon itself."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.session = Session(0, DiscardingOutbox())
        self._methods: dict[str, tuple[Method, Worker | None]] = {}

    def __len__(self) -> int:
        return len(self.session.elements)

    def owns(self, element: Element) -> bool:
        """Return True if an element belongs to the daemon."""
        return element.owner is self.session

    def publish(self, path: str, value: bytes, access: Access | None = None) -> None:
        """Add a state or change its value; an equal value causes no event."""
        element = self._bus.tree.elements.get(path)
        if element is None:
            self._bus.insert_element(Element(path, jsonrpc.encode(path), value, self.session, False, True, access))
        elif element.value != value:
            self._bus.changes.publish(element, value)

    def remove(self, path: str) -> None:
        """Remove a state if it exists."""
        element = self.session.elements.get(path)
        if element is not None:
            self._bus.remove_element(element)

    def add_method(self, path: str, method: Method, worker: Worker | None = None) -> None:
        """Add a method; its work runs in ``worker``, by default that of the bus."""
        self._methods[path] = method, worker
        self._bus.insert_element(Element(path, jsonrpc.encode(path), None, self.session, True))

    def call(self, session: Session, request_id: bytes, path: str, args: bytes) -> None:
        """Call a method and answer the request once its work is done."""
        method, worker = self._methods[path]
        work = method(session, jsonrpc.loads(args) if args else {})

        def done(outcome: bytes | JetError) -> None:
            if session.gone or not request_id:
                return
            if isinstance(outcome, JetError):
                self._bus.answer_error(session, request_id, outcome)
            elif session.dialect.is_binary:
                session.send(binary.encode_response(request_id, outcome))
            else:
                session.send(jsonrpc.encode_result(request_id, binary.to_json(outcome)))

        (worker or self._bus.worker).run(work, done)
