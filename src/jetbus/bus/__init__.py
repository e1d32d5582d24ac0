"""The daemon's brain: tree, fetches, routes and access. No I/O and no clock; it is told who sent what, and when."""
