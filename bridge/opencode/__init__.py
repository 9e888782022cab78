"""The part of the bridge for OpenCode: hooks, link frames, link protocol, redaction. All pure, all sans-I/O."""
