"""Parameters of the frequent services, checked and converted."""

from __future__ import annotations

from msgspec import UnsetType

from jetbus.bus.access import read_access
from jetbus.bus.descriptions import Description, Meta, describe, read_check, read_meta
from jetbus.bus.tree import Element
from jetbus.errors import MissingParam, NotState, WrongType
from jetbus.wire import jsonrpc, legacy
from jetbus.wire.dialects import CLASSIC, LEGACY, TRUE
from jetbus.wire.jsonrpc import NULL, Message, Params

TIMEOUT_S_MAX = 86_400.0
"""Maximum timeout of a request: a day."""

_FALSE = b"false"


def require_params(message: Message) -> Params:
    """Return the parameters of a message; raise if it has none."""
    if message.params is None:
        raise MissingParam("params")
    return message.params


def require_path(params: Params) -> str:
    """Return the path; raise if it is missing."""
    if isinstance(params.path, UnsetType):
        raise MissingParam("path")
    return params.path


def set_details(element: Element, params: Params) -> None:
    """Set the properties of a new element that most elements do not have."""
    if params.element:
        if element.owner.dialect is CLASSIC:
            element.dialect = element.owner.dialect = LEGACY
        described = legacy.LegacyElement(params.element)
        element.value, element.is_method = described.value, described.is_method
        schema, element.description = described.schema, Description(others=described.others)
    else:
        schema = params.schema or None
        if params.meta.check:
            element.description = Description(checks=read_check(params.meta))
            if schema is None:
                raise MissingParam("schema")
    if schema is not None:
        element.description = describe(element.description, schema)
    if params.meta.ts or params.meta.quality:
        if element.is_method:
            raise NotState(element.path)
        element.meta = Meta(*read_meta(params.meta))
    if params.fetchOnly and params.fetchOnly not in (TRUE, _FALSE):
        raise WrongType("fetchOnly")
    element.fetch_only = params.fetchOnly == TRUE
    element.access = read_access(jsonrpc.loads(params.access)) if params.access else None
    element.timeout_s = read_timeout(params)


def read_timeout(params: Params) -> float | None:
    """Return the timeout of a requester or owner in seconds, None if there is none."""
    if not params.timeout or params.timeout == NULL:
        return None
    timeout_s = jsonrpc.loads(params.timeout)
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool):
        raise WrongType("timeout")
    return min(timeout_s, TIMEOUT_S_MAX)
