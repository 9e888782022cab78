"""OpenCode's side of the bridge: hooks, the link's frames, the link protocol. All pure, all sans-I/O."""
