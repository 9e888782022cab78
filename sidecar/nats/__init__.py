"""NATS in the sidecar: the embedded server, the connection, the mirror's task and the token deltas."""
