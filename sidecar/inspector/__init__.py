"""The inspector: a local page over the log, live or stopped, at any moment of the past. Only reads; what acts goes
through the sidecar."""
