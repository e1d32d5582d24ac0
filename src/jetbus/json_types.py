"""Types of decoded JSON: values, objects, and the objects of the protocol that have known members.

A type checker cannot follow values that come from the network, so ``Json`` is ``Any`` to it. To a reader the name says
that a value was decoded from JSON or will be encoded as JSON, and is nothing else: no bytes, no instant, no class.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypeAlias, TypedDict

Json: TypeAlias = Any
"""A decoded JSON value: None, bool, int, float, str, list or dict."""
JsonObject: TypeAlias = dict[str, Json]
"""A decoded JSON object."""


class ErrorObject(TypedDict):
    """An error object of JSON-RPC."""

    code: NotRequired[int]
    """Missing in errors of some owners, which send a bare text."""
    message: str
    data: NotRequired[Json]


class DaemonInfo(TypedDict, total=False):
    """The result of ``info``. A daemon that does not know the service has none of the members."""

    name: str
    """``jetbus``, ``node-jet``, ``cjet`` or ``lua-jet``."""
    version: str
    protocolVersion: str
    features: JsonObject
    limits: JsonObject
    """Limits that concern peers, of a daemon of jetbus that was asked for them."""
