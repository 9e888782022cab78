"""Recording from OpenCode 2. The sidecar finds OpenCode 2's background service by its registration file and reads it
over loopback HTTP."""
