"""What the things a peer hands out have in common, whichever face handed them out: nothing here waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jetbus.peer.elements import Owned, OwnedState
from jetbus.peer.session import Session


class ElementFace:
    """A state or method this peer owns."""

    def __init__(self, session: Session, owned: Owned) -> None:
        self._session = session
        self._owned = owned

    @property
    def path(self) -> str:
        """Where it hangs in the tree."""
        return self._owned.path

    @property
    def added(self) -> bool:
        """Whether it is on the bus, or will be as soon as the connection is back."""
        return self._owned.added


class StateFace(ElementFace):
    """A state this peer owns."""

    _owned: OwnedState

    @property
    def value(self) -> Any:
        """Its value as last changed or set."""
        return self._owned.value

    def change(self, value: Any) -> None:
        """Give it a new value and tell the bus."""
        self._session.change(self._owned, value)


class MirrorFace(Mapping[str, Any]):
    """A live dict: path to value of everything that matches now. A method's value is None."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, path: str) -> Any:
        return self._values[path]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Mirror({self._values!r})"

    def copy(self) -> dict[str, Any]:
        """What it shows at this moment."""
        return self._values.copy()
