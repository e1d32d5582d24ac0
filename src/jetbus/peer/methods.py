"""Signatures of methods: the types of their arguments, and their description for other programs.

The annotations of a function hold for all calls of it as a method. Arguments are converted to them, as values of
a state are to its ``type``: a dataclass arrives as one, a whole number as the float that was asked for. An argument
that does not fit is refused by its name, before the function runs. One without an annotation is passed on unchanged.

Signature and docstring become the method's schema, so that commands and forms know its arguments::

    def run(seconds: float, mode: Literal["once", "always"] = "once") -> int:
        "Run the pump."

    {"title": "Run the pump",
     "properties": {"seconds": {"type": "number"}, "mode": {"enum": ["once", "always"], "default": "once"}},
     "required": ["seconds"],
     "result": {"type": "integer"}}

Arguments that can only be given by position are a list, ``args``; ``items`` describes further ones (``*values``), and
``additionalProperties`` further named ones (``**options``).
"""

from __future__ import annotations

import builtins
import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from jetbus.errors import Refused
from jetbus.json_types import Json, JsonObject
from jetbus.peer.values import Blob
from jetbus.schema import TYPE_BYTES_MAX, describe_type, find_fault, read_schema

log = logging.getLogger("jetbus.peer")

_NONE = inspect.Parameter.empty
_LISTED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
_REST = {inspect.Parameter.VAR_POSITIONAL: "items", inspect.Parameter.VAR_KEYWORD: "additionalProperties"}
"""Members of a schema that describe the arguments of a function without names."""


def invalid_argument(text: str) -> Refused:
    """Return the refusal of an argument or a value, in the form that existing clients know."""
    return Refused("Invalid params", {"invalidArgument": {"name": "jet.InvalidArgument", "message": text}})


class MethodSignature:
    """The arguments that a function takes; see the head of this module."""

    def __init__(self, path: str, function: Callable[..., Any]) -> None:
        self._signature = _read_signature(path, function)
        self._types: dict[str, Any] = {}
        """Types of the arguments that are converted."""
        self._described: dict[str, JsonObject] = {}
        for name, parameter in ({} if self._signature is None else self._signature.parameters).items():
            self._add_type(path, name, parameter)

    def _add_type(self, path: str, name: str, parameter: inspect.Parameter) -> None:
        annotation = parameter.annotation
        if annotation in (_NONE, Any, object):
            self._described[name] = {}
            return
        self._types[name] = annotation
        try:
            self._described[name] = {} if annotation is Blob else describe_type(annotation)
        except RecursionError:
            self._described[name] = {}
        except TypeError:
            # An argument that no caller can give is the function's own, as long as it has a default.
            if parameter.default is _NONE and parameter.kind not in _REST:
                raise TypeError(
                    f"cannot add the method {path}: its argument {name} has the type"
                    f" {inspect.formatannotation(annotation)}, which JSON cannot express;"
                    " use numbers, strings, lists, dicts, bytes or a dataclass"
                ) from None

    def bind(self, args: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments of a call, converted to their types, as those of the function; refuse others."""
        positional, named = (args, {}) if isinstance(args, list) else ((), args)
        if not isinstance(named, dict):
            raise invalid_argument("arguments are an array or an object")
        if self._signature is None:
            return tuple(positional), named
        # Before the call: a TypeError from within the function must not be taken for wrong arguments.
        try:
            bound = self._signature.bind(*positional, **named)
        except TypeError as error:
            raise invalid_argument(f"{error}; the method takes {self._signature}") from None
        for name, wanted in self._types.items():
            if name in bound.arguments:
                bound.arguments[name] = self._convert(name, bound.arguments[name], wanted)
        return bound.args, bound.kwargs

    def _convert(self, name: str, given: Any, wanted: Any) -> Any:
        assert self._signature is not None  # noqa: S101
        kind = self._signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return tuple([self._convert_one(f"{name}[{at}]", one, wanted) for at, one in enumerate(given)])
        if kind is inspect.Parameter.VAR_KEYWORD:
            return {key: self._convert_one(key, one, wanted) for key, one in given.items()}
        return self._convert_one(name, given, wanted)

    def _convert_one(self, name: str, given: Any, wanted: Any) -> Any:
        try:
            return msgspec.convert(given, wanted, str_keys=True)  # names of members are texts in JSON
        except msgspec.ValidationError as error:
            described = self._described.get(name.partition("[")[0], {})
            # The schema has words for most faults; msgspec has some for all of them.
            mismatch = read_schema(described).find_mismatch(given)
            text = f"{name}: {error}" if mismatch is None else f"{name}{str(mismatch).removeprefix('value')}"
            raise invalid_argument(f"the argument {text}; the method takes {self._signature}") from None

    def describe(self, function: Callable[..., Any]) -> JsonObject | None:
        """Return the schema of the method; None if the function says nothing about itself."""
        members = _describe_docstring(function)
        if self._signature is not None:
            members |= self._describe_arguments()
            members |= _describe_result(self._signature.return_annotation)
        if len(msgspec.json.encode(members)) > TYPE_BYTES_MAX or find_fault(members) is not None:
            return None
        return members or None

    def _describe_arguments(self) -> JsonObject:
        assert self._signature is not None  # noqa: S101
        parameters = self._signature.parameters.values()
        members: JsonObject = {}
        named: dict[str, Json] = {}
        listed: list[Json] = []
        is_list = any(parameter.kind in _LISTED for parameter in parameters)
        for parameter in parameters:
            described = self._described.get(parameter.name)
            if described is None:
                continue
            if parameter.kind in _REST:
                members |= {_REST[parameter.kind]: described} if described else {}
            elif is_list and parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                listed.append(described | {"title": parameter.name} | _describe_default(parameter.default))
            else:
                named[parameter.name] = described | _describe_default(parameter.default)
        if listed:
            members["args"] = listed
        if named:
            members["properties"] = named
            required = [name for name in named if self._signature.parameters[name].default is _NONE]
            members |= {"required": required} if required else {}
        return members


def _read_signature(path: str, function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function with its annotations as types; None for built-ins that have none."""
    names = _Names(function)
    try:
        signature = inspect.signature(function, eval_str=True, locals=names)
    except (TypeError, ValueError, NameError, AttributeError, SyntaxError):
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return None
        names.unknown += [name for name, one in signature.parameters.items() if isinstance(one.annotation, str)]
        signature = signature.replace(
            parameters=[
                one.replace(annotation=_NONE) if isinstance(one.annotation, str) else one
                for one in signature.parameters.values()
            ],
            return_annotation=_NONE,
        )
    if names.unknown:
        log.warning(
            "the method %s does not check all of its arguments: cannot resolve %s in its annotations;"
            " import it where it is defined, not for type checkers only",
            path,
            ", ".join(dict.fromkeys(names.unknown)),
        )
    return signature


class _Names(dict[str, Any]):
    """Names in the annotations of a function; one that cannot be found stands for any type."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.unknown: list[str] = []
        plain = _get_function(function)
        self._scopes: list[Mapping[str, Any]] = [getattr(plain, "__globals__", {}), vars(builtins)]
        if inspect.isfunction(plain):
            self._scopes.insert(0, inspect.getclosurevars(plain).nonlocals)

    def __missing__(self, name: str) -> Any:
        for scope in self._scopes:
            if name in scope:
                return scope[name]
        self.unknown.append(name)
        return Any


def _get_function(function: Callable[..., Any]) -> Any:
    """Return the function behind partial objects, bound methods and objects that can be called."""
    found: Any = inspect.unwrap(function)
    while isinstance(found, functools.partial):
        found = inspect.unwrap(found.func)
    if not inspect.isroutine(found):
        found = type(found).__call__
    return getattr(found, "__func__", found)


def _describe_docstring(function: Callable[..., Any]) -> JsonObject:
    """Return title and description: the first paragraph of a docstring, and the others."""
    plain = _get_function(function)
    # The docstrings of built-ins describe Python, and not the bus.
    title, _, rest = (inspect.getdoc(plain) or "" if inspect.isfunction(plain) else "").partition("\n\n")
    members = {"title": " ".join(title.split()).removesuffix("."), "description": rest.strip()}
    return {name: text for name, text in members.items() if text}


def _describe_default(default: Any) -> JsonObject:
    if default is _NONE:
        return {}
    try:
        return {"default": msgspec.to_builtins(default)}
    except (TypeError, ValueError, RecursionError):
        return {}


def _describe_result(annotation: Any) -> JsonObject:
    if annotation in (_NONE, Any, object, None):
        return {}
    try:
        described = describe_type(annotation)
    except (TypeError, RecursionError):
        return {}
    return {"result": described} if described else {}
