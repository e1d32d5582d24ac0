"""The plant of `jet demo` on a bus of your own: the local daemon's, or that of JET_URL.

python examples/plant.py
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

import jetbus
from jetbus.demo.plant import PlantOwner


async def run_plant(seconds: float | None) -> None:
    async with jetbus.PeerAsync(name="plant") as peer:
        owner = PlantOwner(peer)
        await owner.add_elements()
        print(f"{len(owner.states)} states and {len(owner.methods)} methods of a plant at {peer.url}", flush=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await owner.run()


def main() -> int:
    parser = argparse.ArgumentParser(description="A simulated plant on a bus of your own; Ctrl-C ends it.")
    parser.add_argument("--for", dest="seconds", type=float, metavar="SECONDS", help="end after so many seconds")
    seconds = parser.parse_args().seconds
    try:
        asyncio.run(run_plant(seconds))
    except jetbus.JetError as problem:
        print(problem, file=sys.stderr)
        return 3 if isinstance(problem, jetbus.NotConnected) else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
