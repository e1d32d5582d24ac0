"""The bus: tree, fetches, routes and access, without I/O.

The daemon passes in the messages of each peer with the time, and implements the protocols in ``ports``. A message goes
forward only::

    bytes -> wire.jsonrpc -> bus.Bus.receive -> a service -> the element -> its audiences -> outboxes, journal

    bus               entry point, elements and sessions;  ``changes`` of values, ``descriptions``, ``staleness``
    session           a connected peer;  ``account`` of its bytes, ``limits``, ``batches``
    serving           turns and waiting messages;  ``conditions`` of sessions, ``tasks`` of short steps
    usual             the elements and sessions that the compiled lane may serve
    services          the other services, as a table;  ``params``, ``binary_services`` for the binary protocol
    tree, fetches     elements by path, audiences by rule;  ``nodes`` above elements
    audiences         shared notifications;  ``sorting`` for sorted fetches
    preparations      elements that gets and fetches start with, in short steps
    routing           sets and calls to owners and back;  ``routes``, those that wait for a response
    replay, record    the past: fetches that start there, and events for the journal
    permissions       users and reserved paths;  ``access`` of elements, ``rights`` by path
    builtin           states and methods of the daemon itself
    ports             interfaces to the daemon
"""
