"""OpenCode's side of the bridge: hooks, link frames, link protocol, redaction. All pure, all sans-I/O."""
