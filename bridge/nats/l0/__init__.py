"""The L0 protocol (seed 002): payloads, the table of its families, recursion depth. All pure."""
