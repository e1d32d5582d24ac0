"""Alarms: conditions on states, as users write them.

definitions   the file of alarms, which Spark reads by the same functions
"""

from jetbus.alarms.definitions import Alarm, read_alarms

__all__ = ["Alarm", "read_alarms"]
