"""The runtime: agents that act on what is recorded. Knows the log and the bus, not the process around it."""
