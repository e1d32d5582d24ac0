"""The binary protocol, tried by a client that was written from its specification alone."""
