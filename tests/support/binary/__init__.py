"""Shared helpers of the tests of the binary protocol: a client, its layouts, both sides of a bus, and witnesses."""
