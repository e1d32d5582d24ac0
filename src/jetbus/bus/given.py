"""What the busy services read of the parameters they are given."""

from __future__ import annotations

from msgspec import Raw, UnsetType

from jetbus.bus.access import read_access
from jetbus.bus.tree import Element
from jetbus.errors import MissingParam, WrongType
from jetbus.wire import jsonrpc, legacy
from jetbus.wire.dialects import CLASSIC, LEGACY, TRUE
from jetbus.wire.jsonrpc import NULL, Message, Params

TIMEOUT_S_MAX = 86_400.0
"""No request waits longer than a day for its owner."""

_FALSE = Raw(b"false")


def given(message: Message) -> Params:
    """The parameters, which must be there."""
    if message.params is None:
        raise MissingParam("params")
    return message.params


def path_of(params: Params) -> str:
    """The path, which must be there."""
    if isinstance(params.path, UnsetType):
        raise MissingParam("path")
    return params.path


def add_details(element: Element, params: Params) -> None:
    """What few elements have."""
    if params.element:
        if element.owner.dialect is CLASSIC:
            element.dialect = element.owner.dialect = LEGACY
        described = legacy.Element(params.element)
        element.value, element.is_method = described.value, described.is_method
        element.schema, element.others = described.schema, described.others
    elif params.schema:
        element.schema = bytes(params.schema)
    if params.fetchOnly and params.fetchOnly not in (TRUE, _FALSE):
        raise WrongType("fetchOnly")
    element.fetch_only = params.fetchOnly == TRUE
    element.access = read_access(jsonrpc.loads(params.access)) if params.access else None
    element.timeout_s = read_timeout(params)


def read_timeout(params: Params) -> float | None:
    """How long a requester wants to wait, or an owner wants to be waited for."""
    if not params.timeout or params.timeout == NULL:
        return None
    timeout_s = jsonrpc.loads(params.timeout)
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool):
        raise WrongType("timeout")
    return min(timeout_s, TIMEOUT_S_MAX)
