"""Record a bus from outside: a peer that writes the journal of any Jet daemon.

``Recorder`` follows a bus until it is stopped; ``record`` does it in one call. ``journal_behind`` reads what a recorder
missed from the journal of the daemon.
"""

from jetbus.recorder.recorder import Recorder, record

__all__ = ["Recorder", "record"]
