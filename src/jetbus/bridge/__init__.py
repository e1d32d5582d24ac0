"""A bridge mounts another bus into this one.

    async with Bridge("jet://plant2.local", "jet://localhost", prefix="plant2/") as bridge:
        await bridge.wait()

``bridge`` decides on the elements to mount, ``ends`` follows the far bus and is the peer on the near bus that passes on
requests, ``loop_guard`` recognises loops, ``status`` has the state of a bridge and the paths that could not be added.
"""

from jetbus.bridge.bridge import Bridge, run_bridge
from jetbus.bridge.status import Phase, SameBus, Status

__all__ = ["Bridge", "Phase", "SameBus", "Status", "run_bridge"]
