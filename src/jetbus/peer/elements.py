"""What a peer owns: states and methods, and how a request from the bus is answered.

A set is accepted by returning nothing, adapted by returning another value, and refused by raising. An ``Awaitable``
is answered when it is done. The change goes out before the answer, so that whoever sets and fetches sees the change
first.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from jetbus.errors import JetError, MissingParam, NotMethod, NotState, Refused
from jetbus.peer.values import decode_value, encode_value, plain, read_args, read_value
from jetbus.wire import jsonrpc

log = logging.getLogger("jetbus.peer")

WARN_ADAPTED = 1


class _Unchanged:
    def __repr__(self) -> str:
        return "jetbus.UNCHANGED"


UNCHANGED: Any = _Unchanged()
"""Returned by ``on_set``: accepted, but the state keeps its value (it may change later)."""


class Adapted(Struct, frozen=True):
    """Returned by ``on_set``: accepted with another value than asked for, and why."""

    value: Any
    message: str = ""


class Owned:
    """A state or method this peer has hung, or will hang, into the bus."""

    def __init__(self, path: str, access: Mapping[str, Any] | None, timeout_s: float | None) -> None:
        self.path = path
        self.path_json = jsonrpc.encode(path)
        self.access = access
        self.timeout_s = timeout_s
        self.added = False
        """Whether it is to be on the bus; it comes back by itself after a reconnect."""

    def describe(self) -> dict[str, Any]:
        """The parameters of its add."""
        params: dict[str, Any] = {"path": self.path}
        if self.access is not None:
            params["access"] = self.access
        if self.timeout_s is not None:
            params["timeout"] = self.timeout_s
        return params


class OwnedState(Owned):
    """A state: a value that everybody sees and, with ``on_set``, may ask to be changed."""

    def __init__(
        self,
        path: str,
        value: Any,
        on_set: Callable[[Any], Any] | None,
        access: Mapping[str, Any] | None,
        timeout_s: float | None,
        value_type: Any,
    ) -> None:
        super().__init__(path, access, timeout_s)
        self.value = value
        self.change_head = b'{"method":"change","params":{"path":' + self.path_json + b',"value":'
        """How the messages begin that tell its value."""
        self.is_long = False
        """Whether it has had a value of a length that the daemon may not take."""
        self.fallback: Any = None
        """The value to go back to if the daemon turns out not to take a longer one."""
        self.on_set = on_set
        self.type = value_type

    def describe(self) -> dict[str, Any]:
        params = super().describe() | {"value": plain(self.value)}
        if self.on_set is None:
            params["fetchOnly"] = True
        return params

    def asked(self, value: Any) -> Any:
        """Run ``on_set`` with the value asked for."""
        if self.on_set is None:
            raise Refused("Invalid params", {"fetchOnly": self.path})
        return self.on_set(value)

    def read(self, raw: Raw) -> Any:
        """The value asked for, as the state's type."""
        if self.type is None:
            return read_value(_decode_argument(raw))
        try:
            return msgspec.json.decode(raw, type=self.type)
        except msgspec.ValidationError as problem:
            raise _invalid_argument(str(problem)) from None


class OwnedMethod(Owned):
    """A method: a function that everybody may call. Arrays become positional, objects keyword arguments."""

    def __init__(
        self, path: str, function: Callable[..., Any], access: Mapping[str, Any] | None, timeout_s: float | None
    ) -> None:
        super().__init__(path, access, timeout_s)
        self.function = function
        self._signature = _signature(function)

    def called(self, args: Any) -> Any:
        """Run the function, unless the arguments do not fit it."""
        positional, named = (args, {}) if isinstance(args, list) else ((), args)
        if not isinstance(named, dict):
            raise _invalid_argument("arguments are an array or an object")
        if self._signature is not None:
            try:
                self._signature.bind(*positional, **named)
            except TypeError as problem:
                raise _invalid_argument(f"{problem}; the method takes {self._signature}") from None
        return self.function(*positional, **named)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None  # some built-ins have none


def _decode_argument(raw: Raw) -> Any:
    try:
        return decode_value(raw)
    except ValueError as problem:
        raise _invalid_argument(str(problem)) from None


def _invalid_argument(text: str) -> Refused:
    return Refused("Invalid params", {"invalidArgument": {"name": "jet.InvalidArgument", "message": text}})


def _internal(text: str) -> Refused:
    return Refused("Internal error", {"reason": text, "message": text}, code=-32603)


def error_of(problem: BaseException, path: str) -> JetError:
    """What to answer when a handler raised: its own error as it is, a ValueError as an invalid argument."""
    if isinstance(problem, Refused) or (isinstance(problem, JetError) and problem.data is not None):
        return problem
    if isinstance(problem, ValueError):
        return _invalid_argument(str(problem))
    log.error("the handler of %s failed", path, exc_info=problem)
    return _internal(f"{type(problem).__name__}: {problem}")


Spawn = Callable[[Awaitable[Any], Callable[[Any, BaseException | None], None]], None]
"""Await something aside, then call with its result or what it raised."""


class Answering:
    """One routed request: runs the handler, now or aside, and answers."""

    def __init__(
        self, owned: Owned, request_id: bytes, send: Callable[[bytes], None], change: Callable[[OwnedState, Any], None]
    ) -> None:
        self._owned = owned
        self._id = request_id
        self._send = send
        self._change = change
        self._asked: Any = None
        self._value_as_result = False

    def set(self, params: dict[str, Raw], spawn: Spawn) -> None:
        self._value_as_result = params.get("valueAsResult") == Raw(b"true")

        def run() -> Any:
            if not isinstance(self._owned, OwnedState):
                raise NotState(self._owned.path)
            if "value" not in params:
                raise MissingParam("value")
            self._asked = self._owned.read(params["value"])
            return self._owned.asked(self._asked)

        self._run(run, spawn)

    def call(self, args: Raw, spawn: Spawn) -> None:
        def run() -> Any:
            if not isinstance(self._owned, OwnedMethod):
                raise NotMethod(self._owned.path)
            return self._owned.called(read_args(_decode_argument(args)) if args else {})

        self._run(run, spawn)

    def _run(self, handler: Callable[[], Any], spawn: Spawn) -> None:
        try:
            outcome = handler()
        except Exception as problem:
            self._done(None, problem)
            return
        if hasattr(outcome, "__await__"):
            spawn(outcome, self._done)
        else:
            self._done(outcome, None)

    def _done(self, outcome: Any, problem: BaseException | None) -> None:
        if problem is None:
            try:
                answer = encode_value(self._accept(outcome) if isinstance(self._owned, OwnedState) else outcome)
            except JetError as refused:
                problem = refused
            except Exception as unfit:
                problem = _internal(f"the answer cannot be told as JSON: {unfit}")
        if not self._id:
            return
        if problem is None:
            self._send(jsonrpc.result(self._id, answer))
        else:
            self._send(jsonrpc.failure(self._id, self._told(problem)))

    def _told(self, problem: BaseException) -> bytes:
        try:
            return jsonrpc.encode(error_of(problem, self._owned.path).wire())
        except Exception as unfit:
            return jsonrpc.encode(_internal(f"{problem}; its data cannot be told as JSON: {unfit}").wire())

    def _accept(self, outcome: Any) -> Any:
        """Take over what a set ended in; gives the result to answer with."""
        state = self._owned
        assert isinstance(state, OwnedState)  # noqa: S101
        message = ""
        value = self._asked if outcome is None else outcome
        if isinstance(outcome, Adapted):
            value, message = outcome.value, outcome.message
        if outcome is not UNCHANGED:
            self._change(state, value)
        if self._value_as_result:
            return state.value
        if outcome is None or outcome is UNCHANGED or (not isinstance(outcome, Adapted) and value == self._asked):
            return {}
        warning = {"code": WARN_ADAPTED, "message": message} if message else {"code": WARN_ADAPTED}
        return {"warning": warning}
