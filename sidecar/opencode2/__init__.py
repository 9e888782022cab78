"""Recording from OpenCode 2: its background service, found by its registration, read over loopback HTTP."""
