"""The whole system, as a state machine."""
