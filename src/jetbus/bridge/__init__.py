"""A bridge mounts another bus into this one.

    async with Bridge("jet://plant2.local", "jet://localhost", prefix="plant2/") as bridge:
        await bridge.wait()

``bridge`` decides what is mounted, ``far`` follows the far bus, ``near`` is the peer on the near bus that passes on
what is asked, ``blocked`` keeps what could not be added, ``areas`` recognises loops, ``running`` is the blocking way to
run one.
"""

from jetbus.bridge.bridge import Bridge
from jetbus.bridge.running import run_bridge
from jetbus.bridge.status import Phase, SameBus, Status

__all__ = ["Bridge", "Phase", "SameBus", "Status", "run_bridge"]
