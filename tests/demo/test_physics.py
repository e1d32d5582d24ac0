"""The plant without a bus: its states move together, its faults come and go."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from jetbus.demo.physics import Plant
from jetbus.demo.tables import ALARMS
from jetbus.rules import parse_rule

STEP_S = 0.2


def lived(plant: Plant, seconds: float) -> list[dict[str, Any]]:
    """Yield the values of the plant while time passes."""
    shown = []
    for _ in range(round(seconds / STEP_S)):
        plant.step(STEP_S)
        shown.append(plant.read_values())
    return shown


def test_the_bearing_fails_and_recovers() -> None:
    """The second pump's bearing fails now and then: it shakes, heats up, takes more current and pumps less."""
    shown = lived(Plant(), 50)
    bad = [one for one in shown if "pump 2: bearing" in one["plant/faults"]]
    good = [one for one in shown[25:] if "pump 2: bearing" not in one["plant/faults"]]
    for name in ("vibration_mm_s", "current_a"):
        path = f"plant/pump/2/{name}"
        assert min(one[path] for one in bad) > max(one[path] for one in good)
    assert bad[-1]["plant/pump/2/bearing_c"] > good[0]["plant/pump/2/bearing_c"]
    assert max(one["plant/pump/2/flow_l_min"] for one in bad) < min(one["plant/pump/2/flow_l_min"] for one in good)


def test_the_filter_clogs_until_it_is_cleaned() -> None:
    """A filter that clogs takes more pressure and lets less through; cleaning it brings both back."""
    plant = Plant()
    before, after = lived(plant, 60)[25], plant.read_values()
    assert after["plant/filter/pressure_drop_mbar"] > 1.5 * before["plant/filter/pressure_drop_mbar"]
    assert after["plant/tank/inflow_l_min"] < before["plant/tank/inflow_l_min"]
    assert "filter: clogged" in after["plant/faults"]
    assert plant.clean() == after["plant/filter/clogged_percent"]
    clean = lived(plant, 1)[-1]
    assert clean["plant/filter/pressure_drop_mbar"] < before["plant/filter/pressure_drop_mbar"]
    assert "filter: clogged" not in clean["plant/faults"]


def test_the_plant_keeps_itself_in_bounds() -> None:
    """Left alone for an hour the plant neither overflows nor runs dry nor boils."""
    shown = lived(Plant(), 3600)
    for path, low, high in (("plant/tank/level_percent", 15, 60), ("plant/tank/temperature_c", 40, 46)):
        values = [one[path] for one in shown]
        assert low < min(values) < max(values) < high


def test_a_stopped_plant_runs_dry() -> None:
    """Without pumps the tank empties, and nothing shakes or takes current."""
    plant = Plant()
    assert plant.switch({1, 2, 3}, on=False) == []
    last = lived(plant, 300)[-1]
    assert last["plant/tank/level_percent"] < 1
    assert last["plant/pump/1/vibration_mm_s"] == last["plant/pump/1/current_a"] == 0


def test_counters_are_reset() -> None:
    """Counters count, and resetting them tells what they had reached."""
    plant = Plant()
    lived(plant, 20)
    reached = plant.get_counters()
    assert all(reached.values())
    assert plant.reset(["delivered_l"]) == {"delivered_l": reached["delivered_l"]}
    assert plant.get_counters() == {**reached, "delivered_l": 0}


@pytest.mark.parametrize("name", ["bearing", "filter", "hot", "level"])
def test_alarms_are_about_states_that_are_there(name: str) -> None:
    """Each alarm of the demo is about numbers of the plant."""
    rule = parse_rule(tomllib.loads(ALARMS.read_text(encoding="utf-8"))["alarm"][name]["rule"])
    found = [value for path, value in Plant().read_values().items() if rule.matches_path(path)]
    assert found
    assert all(isinstance(value, float) for value in found)
