"""OpenCode 2: what its sessions' own durable events become. Pure."""
