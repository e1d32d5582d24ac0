"""Bytes to messages and back, for every dialect of Jet. No sockets, no clock, no bus."""
