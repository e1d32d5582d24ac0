"""Room for long searches: bounded in all, and for each address."""

from __future__ import annotations

from collections import Counter

import pytest

from jetbus.bus.tasks import Place, Room

MOST = 100


class Searches:
    """A room with searches that are asked for by address and size."""

    def __init__(self) -> None:
        self.waited: Counter[str] = Counter()
        self.room = Room(lambda: MOST, lambda: self.waited.update(["searches"]))
        self.entered: list[Place] = []

    def ask(self, address: str, size: int) -> Place:
        """Ask for room; ``entered`` has the searches that have it."""
        place = Place(self.room, address, size)
        place.run(lambda: self.entered.append(place))
        if place.is_done:
            self.entered.append(place)
        return place


@pytest.fixture
def searches() -> Searches:
    """An empty room."""
    return Searches()


def test_another_address_need_not_wait(searches: Searches) -> None:
    """Many searches of one address take half of the room; the first one of another address enters at once."""
    attackers = [searches.ask("attacker", 20) for _ in range(10)]
    assert searches.entered == attackers[:2]
    assert searches.waited["searches"] == 8
    assert searches.ask("healthy", 90).is_done
    assert not searches.ask("another", 30).is_done


def test_addresses_take_turns(searches: Searches) -> None:
    """A search that ends makes room for the address that has waited longest, in the order of its searches."""
    first = searches.ask("a", 90)
    waiting = [searches.ask(address, 90) for address in ("b", "b", "c")]
    for place in (first, waiting[0], waiting[2]):
        place.leave()
    assert searches.entered == [first, waiting[0], waiting[2], waiting[1]]


def test_a_search_larger_than_the_room(searches: Searches) -> None:
    """A search of any size enters an empty room, and nothing enters beside it."""
    large, small = searches.ask("a", 10 * MOST), searches.ask("b", 1)
    assert (large.is_done, small.is_done) == (True, False)
    large.leave()
    assert small.is_done


def test_room_that_is_not_needed(searches: Searches) -> None:
    """A search that was estimated too large gives back what it does not need, once, and the rest at its end."""
    large, small = searches.ask("a", 10 * MOST), searches.ask("b", MOST + 30)
    large.shrink(10)
    large.shrink(10 * MOST)
    assert small.is_done
    assert not searches.ask("c", 20).is_done
    large.leave()
    assert searches.entered[-1].address == "c"
