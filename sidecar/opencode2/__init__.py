"""Recording from OpenCode 2. Its background service is found by its registration file and read over loopback HTTP."""
