"""Alarms: conditions on states, raised and cleared while the bus runs, and acts of operators on them.

    definitions   the file of alarms, which Spark reads by the same functions
    rows          the columns that conditions see
    conditions    conditions in SQL as Python functions, with the meaning that they have in Spark
    signals       when alarms are raised and cleared, from one event after the other
    lifecycle     the table of states of an alarm, as ISA-18.2 has them
    board         the states of all alarms, and the acts of operators
    receivers     where notifications go: commands, webhooks, mails, states and methods
    notifications   the queues of the receivers, reminders and escalation
    live          the peer that watches a bus and publishes the board

Only ``live`` does I/O. sqlglot is imported with ``conditions``, so that Spark and the command line can read a file
without it.
"""

from jetbus.alarms.definitions import PRIORITIES, Alarm, read_alarms

__all__ = ["PRIORITIES", "Alarm", "read_alarms"]
