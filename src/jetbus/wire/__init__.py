"""Wire formats: bytes to messages and back, for every dialect of Jet. No sockets, no clock, no bus.

    framing         boundaries of messages on a connection
    intake          the one place that checks messages;  ``lane``, from the buffer of a connection to the bus
    jsonrpc         JSON messages: decoding, checks, responses
    notifications   JSON texts of events, entries and lists
    dialects        differences between the dialects, as one table
    legacy          requests of the dialect of 2012
    binary          the binary protocol

All JSON text that the daemon sends is composed in this package.
"""
