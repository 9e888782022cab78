"""Playing a recording of OpenCode to a sidecar."""
