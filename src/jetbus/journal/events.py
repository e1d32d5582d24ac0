"""Groups of recorded events that all readers share; without Arrow, which commands import only when they need it."""

from __future__ import annotations

TREE_EVENTS = ("add", "change", "remove")
"""Events of elements and their values."""
VALUE_EVENTS = (*TREE_EVENTS, "past")
"""Events of a history: those and late values, which come as ``past``."""
CUTS = ("stop", "start", "gap")
"""Events after which no value of any path is known until the path is added again.

    stop    the daemon ended; values were in force until then
    start   the daemon started, without a stop before if it was killed
    gap     the journal missed events, since the disk refused them
"""
CLEARING_EVENTS = ("start", "stop")
"""Events after which the tree is empty."""
