"""Audiences: groups of fetches that share their notifications.

Programs that use the same library fetch the same rules with the same fetch ids, so the bus sends them the same bytes.
Fetches that agree in everything the bytes depend on (id, rule, dialect, framing, user, options) form one *audience*.
An event is encoded once for the whole audience.

**Chunks.** Within a turn of the event loop an audience collects its events in one *chunk*, and the outbox of every
member only refers to that chunk. A hundred dashboards then cost a hundred writes a turn, and not a hundred appends an
event::

    audience "plant"          chunk [ event 1 | event 2 | event 3 ]
                                 ^            ^            ^
    outbox of peer A    response |            |            |
    outbox of peer B             |   (empty)  |            |
    outbox of peer C      other event         |            |

**Order.** Each member must see the order that it would have seen alone. Hence the invariant: *an open chunk is the last
entry in the outbox of every member*. Whatever else is put into one of these outboxes first closes the chunk; the next
event of the audience opens a new one. If peer A above receives another response, it follows the chunk, and event 4
starts a second chunk for all three.

**Exceptions.** An audience with one member needs no chunk: it borrows the list of frames of that outbox. A member with
a full socket is *slow*: it leaves the chunks and is sent events one by one, so that a newer change can replace an
older one in its queue. Chunks that collect only changes (``combined``) may be open in an outbox side by side, since
the order between different fetches is free.

    audience    JSON fetches, one frame per event
    combined    JSON fetches that asked for all changes of a turn in one message
    described   fetches that ask for schemas or meta data
    recorded    fetches that ask for the place of each event in the journal
    binary      fetches of the binary protocol, where each member has a fetch id of its own
"""

from jetbus.bus.audiences.audience import Audience, Chunk
from jetbus.bus.audiences.binary import BinaryAudience
from jetbus.bus.audiences.combined import CombinedAudience
from jetbus.bus.audiences.described import DescribedAudience, DescribedBinaryAudience
from jetbus.bus.audiences.recorded import Places, RecordedAudience, RecordedBinaryAudience

__all__ = [
    "Audience",
    "BinaryAudience",
    "Chunk",
    "CombinedAudience",
    "DescribedAudience",
    "DescribedBinaryAudience",
    "Places",
    "RecordedAudience",
    "RecordedBinaryAudience",
]
