"""The near end of a bridge: the peer that owns what is mounted, and passes on what is asked of it.

Values, arguments and results travel through as the JSON they are. A request waits in the far daemon, as every request
does; what is kept here is only whom to answer. An answer never overtakes the events that came before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from jetbus.errors import Internal, JetError, MissingParam, NotConnected, OwnerLost, Refused
from jetbus.peer.elements import Owned, Spawn
from jetbus.peer.session import GRACE_S, Session
from jetbus.wire import jsonrpc

REQUESTS_MAX = 1000
"""Requests to one state or method that wait for the far owner."""


class Mount(Owned):
    """A state or method of the far bus, as it hangs, or could hang, in the near one."""

    def __init__(
        self,
        far_path: str,
        path: str,
        value: bytes | None,
        *,
        fetch_only: bool = False,
        access: Any = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(path, access, timeout_s)
        self.far_path = far_path
        self.value = value
        """JSON; None for a method."""
        self.fetch_only = fetch_only
        self.attempt = 0
        """Counts the adds, so that the answer to one is not taken for that to another."""
        self.waiting = 0
        """Requests the far owner has yet to answer."""

    @property
    def is_method(self) -> bool:
        return self.value is None

    def describe(self) -> dict[str, Any]:
        params = super().describe()
        if self.value is not None:
            params["value"] = Raw(self.value)
        if self.fetch_only:
            params["fetchOnly"] = True
        return params


class NearSession(Session):
    """What the bridge is on the near bus."""

    def __init__(self, far: Session, patience_s: float, spawn: Spawn) -> None:
        super().__init__(spawn)
        self._far = far
        self._patience_s = patience_s
        self.connection = 0
        """Counts the connections: what was asked on one is not answered on another."""
        self.on_added: Callable[[Mount], None] = lambda _mount: None
        self.on_refused: Callable[[Mount, JetError], None] = lambda _mount, _error: None
        self.catch_up: Callable[[], None] = lambda: None
        """Called before an answer goes out, to let go out what came before it."""

    # -- adding

    def hang(self, mount: Mount) -> None:
        """Add it, now and whenever the connection comes back."""
        self.owned[mount.path] = mount
        mount.added = True
        if self.connected:
            self.add_again(mount)

    def unhang(self, mount: Mount) -> None:
        """Remove it."""
        if mount.added:
            self.drop(mount)
            if self.connected:
                self.send(b'{"method":"remove","params":{"path":' + mount.path_json + b"}}")

    def on_connected(self) -> None:
        self.connection += 1
        super().on_connected()

    def add_again(self, owned: Owned) -> None:
        assert isinstance(owned, Mount)  # noqa: S101 - nothing else is added here
        owned.attempt += 1
        self.request("add", owned.describe(), _Hanging(self, owned))

    def tell(self, mount: Mount, value: bytes) -> None:
        """A state has a new value."""
        mount.value = value
        if mount.added and self.connected:
            self.send(b'{"method":"change","params":{"path":' + mount.path_json + b',"value":' + value + b"}}")

    # -- requests

    def _serve(self, method: str, envelope: jsonrpc.Envelope) -> None:
        request_id = bytes(envelope.id)
        try:
            mount, service, params = self._asked(method, envelope.params)
            if mount is not None:
                self._pass_on(mount, service, params, request_id)
        except JetError as problem:
            self.answer_error(request_id, problem.wire())

    def _asked(self, method: str, params: Raw) -> tuple[Mount | None, str, dict[str, Raw]]:
        """What is asked of which: routed by path, or by ``set`` and ``call`` as node-jet 3 does it."""
        mount = self.owned.get(method)
        if mount is None and method in ("set", "call"):
            fields = jsonrpc.read_fields(params)
            path = jsonrpc.read_text(fields.get("path", Raw(b'""')), "path")
            return _mount(self.owned.get(path)), method, fields
        mount = _mount(mount)
        if mount is None or mount.is_method:
            return mount, "call", {"args": params} if params else {}
        if bytes(params)[:1] == b"[":  # a daemon of 2012 sends the value alone in an array
            return mount, "set", dict(zip(("value",), jsonrpc.decode_members(params), strict=False))
        return mount, "set", jsonrpc.read_fields(params)

    def _pass_on(self, mount: Mount, service: str, params: dict[str, Raw], request_id: bytes) -> None:
        if service == "set" and "value" not in params:
            raise MissingParam("value")
        timeout_s = _read_timeout(params, self._patience_s)
        asked: dict[str, Any] = {"path": mount.far_path}
        asked |= {name: params[name] for name in ("value", "args", "valueAsResult") if name in params}
        asked["timeout"] = timeout_s
        if not request_id:
            if self._far.connected:
                self._far.send(jsonrpc.encode({"method": service, "params": asked}))
            return
        if mount.waiting >= REQUESTS_MAX:
            text = f"{mount.waiting} requests to {mount.path} wait for an answer from the far bus; ask again later"
            raise Internal("requests_max reached", text)
        relay = _Relay(self, mount, request_id, service == "set")
        try:
            self._far.request(service, asked, relay, _as_it_is, timeout_s + GRACE_S, mount.far_path)
        except NotConnected:
            raise OwnerLost from None
        mount.waiting += 1

    def answer(self, request_id: bytes, result: Any) -> None:
        """Answer with a result."""
        self._send_if_connected(jsonrpc.result(request_id, jsonrpc.encode(result)))

    def answer_error(self, request_id: bytes, error: dict[str, Any]) -> None:
        """Answer with an error."""
        if request_id:
            self._send_if_connected(jsonrpc.failure(request_id, jsonrpc.encode(error)))


def _read_timeout(params: dict[str, Raw], patience_s: float) -> float:
    """How long the requester waits, where the near daemon tells it; most keep that to themselves."""
    told = jsonrpc.loads(params["timeout"]) if "timeout" in params else None
    return told if isinstance(told, int | float) and not isinstance(told, bool) else patience_s


def _mount(owned: Owned | None) -> Mount | None:
    return owned if isinstance(owned, Mount) else None


def _as_it_is(result: Any) -> Any:
    return result


class _Hanging:
    """Waits for the answer to an add."""

    def __init__(self, session: NearSession, mount: Mount) -> None:
        self._session, self._mount, self._attempt = session, mount, mount.attempt

    def done(self) -> bool:
        return not self._mount.added or self._attempt != self._mount.attempt

    def set_result(self, _result: Any, /) -> None:
        self._session.on_added(self._mount)

    def set_exception(self, exception: BaseException, /) -> None:
        if isinstance(exception, JetError) and not isinstance(exception, NotConnected) and not self.done():
            self._session.drop(self._mount)
            self._session.on_refused(self._mount, exception)


class _Relay:
    """One request on its way through: takes the far answer and gives it to whoever asked on the near bus."""

    def __init__(self, near: NearSession, mount: Mount, request_id: bytes, is_set: bool) -> None:
        self._near = near
        self._connection = near.connection
        self._mount = mount
        self._id = request_id
        self._is_set = is_set

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        if self._arrived():
            if self._is_set and isinstance(result, dict) and result.keys() == {"path", "value"}:
                result = self._renamed(result)  # owners of node-jet 3 name the path
            self._near.answer(self._id, result)

    def set_exception(self, exception: BaseException, /) -> None:
        if self._arrived():
            error = exception if isinstance(exception, JetError) else Internal(str(exception))
            if isinstance(error, NotConnected):
                error = OwnerLost()
            told = error.wire()
            if not isinstance(error, Refused) and isinstance(told["data"], dict):
                told["data"] = self._renamed(told["data"])
            self._near.answer_error(self._id, told)

    def _arrived(self) -> bool:
        """Whether there is still somebody to answer."""
        self._mount.waiting -= 1
        self._near.catch_up()
        return self._connection == self._near.connection

    def _renamed(self, told: dict[str, Any]) -> dict[str, Any]:
        """What a daemon says of a path, with the path that the requester knows."""
        mount = self._mount
        return {name: mount.path if value == mount.far_path else value for name, value in told.items()}
