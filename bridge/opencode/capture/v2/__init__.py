"""OpenCode 2: what the durable events of its sessions are recorded as. Pure."""
