"""The command `jet`, run for real: in a pipe and in a pseudo-terminal, against a real daemon."""
