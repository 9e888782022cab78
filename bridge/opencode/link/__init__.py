"""The link between a shim and the sidecar: frames, protocol, spool lines. Pure, sans-I/O."""
