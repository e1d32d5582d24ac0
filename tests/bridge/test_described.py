"""Descriptions, times and qualities of the far bus are on the near one."""

from __future__ import annotations

from typing import Any

from jetbus import PeerAsync
from jetbus.bridge import Bridge
from jetbus.schema import GOOD, Quality
from jetbus.testing import RunningDaemon
from support.bridges import run


def _about(event: Any) -> tuple[Any, ...]:
    return event.value, None if event.schema is None else event.schema.unit, event.ts, event.quality, event.stale


def test_a_bridge_carries_descriptions(far: RunningDaemon, near: RunningDaemon) -> None:
    """Schema, time, quality and their changes come through; a new schema is one event, with or without a value."""

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            state = await owner.add_state("speed", 1, unit="rpm")
            state.change(2, ts=1_000_000, quality={"level": "bad", "reason": "cable"})
            reset = await owner.add_method("reset", lambda: None, schema={"unit": "none"})
            await owner.info()
            async with Bridge(far.url, near.url, prefix="p/"):
                fetch = client.fetch("p/speed", schema=True, meta=True, policy="every")
                time = "1970-01-01T00:00:01.000000Z"
                assert _about(await anext(fetch)) == (2, "rpm", time, Quality("bad", "cable"), False)
                state.change(3)
                assert _about(await anext(fetch)) == (3, "rpm", "", GOOD, False)
                state.change(4, quality="uncertain")
                assert _about(await anext(fetch)) == (4, "rpm", "", Quality("uncertain"), False)
                state.describe(unit="1/min")
                assert _about(await anext(fetch))[:2] == (4, "1/min")
                event = await client.wait_for("p/reset", timeout_s=20)
                assert event.is_method
                async with client.fetch("p/reset", schema=True) as methods:
                    described = (await anext(methods)).schema
                    assert described is not None
                    assert described.unit == "none"
                assert reset.added

    run(case())


def test_a_stale_state_is_stale_on_both_buses(far: RunningDaemon, near: RunningDaemon) -> None:
    """The near daemon finds out by itself that a state is stale, and the bridge does not bring it back to life."""

    async def case() -> None:
        async with (
            PeerAsync(far.url) as owner,
            PeerAsync(near.url) as client,
            Bridge(far.url, near.url, prefix="p/"),
        ):
            fetch = client.fetch("p/s", meta=True, policy="every")
            state = await owner.add_state("s", 1, stale_s=0.1)
            assert _about(await anext(fetch))[4] is False
            assert _about(await anext(fetch))[4] is True
            state.change(2)
            event = await anext(fetch)
            assert (event.value, event.stale) == (2, False)

    run(case())
