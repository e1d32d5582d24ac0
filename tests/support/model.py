"""A plain model of the bus: the strict tree, elements, fetches and what each of them must be told. No wire, no speed.

`Model` methods are the services; each returns the response (`OK`, or a `Refused` with the error's data) and leaves the
events in `told`: (peer, fetch id) to a list of params.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

METHOD = object()  # the value of an element that has none
JSON_TYPES = {bool: "boolean", int: "number", float: "number", str: "string"}


@dataclass(frozen=True)
class Refused:
    """An error -32602 with this data; None if the protocol leaves the data open."""

    data: dict[str, Any] | None


OK = True
Outcome = bool | Refused


def kind_of(value: Any) -> str:
    return JSON_TYPES.get(type(value), "object")


def equal(value: Any, operand: Any) -> bool:
    """Primitives of one kind are compared; objects are equal to nothing."""
    return not isinstance(value, dict | list) and kind_of(value) == kind_of(operand) and value == operand


PATH_RULES: dict[str, Callable[[str, Any], bool]] = {
    "equals": lambda path, text: path == text,
    "equalsNot": lambda path, text: path != text,
    "contains": lambda path, text: text in path,
    "containsNot": lambda path, text: text not in path,
    "containsAllOf": lambda path, texts: all(text in path for text in texts),
    "containsOneOf": lambda path, texts: any(text in path for text in texts),
    "startsWith": lambda path, text: path.startswith(text),
    "startsNotWith": lambda path, text: not path.startswith(text),
    "endsWith": lambda path, text: path.endswith(text),
    "endsNotWith": lambda path, text: not path.endswith(text),
    "equalsOneOf": lambda path, texts: path in texts,
    "equalsNotOneOf": lambda path, texts: path not in texts,
}
VALUE_RULES: dict[str, Callable[[Any, Any], bool]] = {
    "equals": equal,
    "equalsNot": lambda value, operand: not equal(value, operand),
    "lessThan": lambda value, operand: kind_of(value) == kind_of(operand) and value < operand,
    "greaterThan": lambda value, operand: kind_of(value) == kind_of(operand) and value > operand,
    "isType": lambda value, operand: kind_of(value) == operand,
}


def folded(operand: Any) -> Any:
    return operand.lower() if isinstance(operand, str) else [text.lower() for text in operand]


@dataclass
class ModelElement:
    owner: int
    value: Any
    fetch_only: bool = False


@dataclass
class Fetch:
    """One fetch; `matching` are the paths that its peer knows of."""

    rule: dict[str, Any]
    matching: set[str] = field(default_factory=set)

    def matches(self, path: str, value: Any) -> bool:
        rules = dict(self.rule.get("path", {}))
        fold = rules.pop("caseInsensitive", False)
        subject = path.lower() if fold else path
        if not all(PATH_RULES[op](subject, folded(x) if fold else x) for op, x in rules.items()):
            return False
        if "value" in self.rule:
            return value is not METHOD and all(VALUE_RULES[op](value, x) for op, x in self.rule["value"].items())
        if "valueField" in self.rule:
            ((name, ops),) = self.rule["valueField"].items()
            if not isinstance(value, dict) or name not in value:
                return False
            return all(VALUE_RULES[op](value[name], x) for op, x in ops.items())
        wanted = self.rule.get("sort", {}).get("byValue")
        return wanted is None or (value is not METHOD and kind_of(value) == wanted)


@dataclass
class Model:
    strict: bool = False
    """Whether no leaf may be above or below another one."""
    elements: dict[str, ModelElement] = field(default_factory=dict)
    fetches: dict[int, dict[Any, Fetch]] = field(default_factory=lambda: defaultdict(dict))
    received: dict[tuple[int, Any], list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, peer: int, path: str, value: Any, fetch_only: bool) -> Outcome:
        if path in self.elements or (self.strict and any(_are_related(path, there) for there in self.elements)):
            return Refused({"pathAlreadyExists": path})
        self.elements[path] = ModelElement(peer, value, fetch_only)
        self._tell(path, "add")
        return OK

    def remove(self, peer: int, path: str) -> Outcome:
        if refused := self._not_mine(peer, path):
            return refused
        self._tell(path, "remove")
        del self.elements[path]
        return OK

    def change(self, peer: int, path: str, value: Any) -> Outcome:
        if refused := self._not_mine(peer, path):
            return refused
        if self.elements[path].value is METHOD:
            return Refused(None)
        self.elements[path].value = value
        self._tell(path, "change")
        return OK

    def route(self, path: str, *, is_call: bool) -> int | Refused:
        """The owner to whom a set or call goes."""
        element = self.elements.get(path)
        if element is None:
            return Refused({"pathNotExists": path})
        if (element.value is METHOD) is not is_call:
            return Refused(None)
        return Refused({"fetchOnly": path}) if element.fetch_only else element.owner

    def fetch(self, peer: int, fetch_id: Any, rule: dict[str, Any]) -> Outcome:
        if fetch_id in self.fetches[peer]:
            return Refused(None)
        self.fetches[peer][fetch_id] = fetch = Fetch(rule)
        for path in self.elements:
            self._tell_one(peer, fetch_id, fetch, path, "add")
        return OK

    def unfetch(self, peer: int, fetch_id: Any) -> Outcome:
        return OK if self.fetches[peer].pop(fetch_id, None) else Refused(None)

    def disconnect(self, peer: int) -> None:
        self.fetches.pop(peer, None)
        for path in [path for path, element in self.elements.items() if element.owner == peer]:
            self.remove(peer, path)

    def get(self, rule: dict[str, Any]) -> list[dict[str, Any]]:
        fetch = Fetch(rule)
        found = [path for path, element in self.elements.items() if fetch.matches(path, element.value)]
        return [self._event(path, "add") for path in found]

    def window(self, fetch: Fetch) -> list[str]:
        """The paths that a sorted fetch by path shows, in order."""
        sort = fetch.rule["sort"]
        ordered = sorted(fetch.matching, reverse=sort["descending"])
        return ordered[sort["from"] - 1 : sort["to"]]

    def _not_mine(self, peer: int, path: str) -> Refused | None:
        if path not in self.elements:
            return Refused({"pathNotExists": path})
        return None if self.elements[path].owner == peer else Refused({"foreignPath": path})

    def _tell(self, path: str, event: str) -> None:
        for peer, fetches in self.fetches.items():
            for fetch_id, fetch in fetches.items():
                self._tell_one(peer, fetch_id, fetch, path, event)

    def _tell_one(self, peer: int, fetch_id: Any, fetch: Fetch, path: str, event: str) -> None:
        known = path in fetch.matching
        matches = event != "remove" and fetch.matches(path, self.elements[path].value)
        if not known and not matches:
            return
        (fetch.matching.add if matches else fetch.matching.discard)(path)
        event = "remove" if not matches else "change" if known else "add"
        self.received[peer, fetch_id].append(self._event(path, event))

    def _event(self, path: str, event: str) -> dict[str, Any]:
        element = self.elements[path]
        value = {} if element.value is METHOD else {"value": element.value}
        only = {"fetchOnly": True} if element.fetch_only and event == "add" else {}
        return {"path": path, "event": event, **value, **only}


def _are_related(one: str, other: str) -> bool:
    return one.startswith(other + "/") or other.startswith(one + "/")
