"""The link between a shim and the sidecar: its frames, its protocol, the spool's lines. Pure, sans-I/O."""
