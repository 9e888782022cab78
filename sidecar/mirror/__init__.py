"""NATS in the sidecar: the embedded server, the mirror of the log, commands for agents, and token deltas."""
