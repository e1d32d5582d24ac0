"""The shell round the brain: listeners, connections, outboxes, users, configuration and what the daemon tells of
itself."""
