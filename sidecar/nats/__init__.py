"""The sidecar's side of NATS: the embedded server, and the connection to it or to another one."""
