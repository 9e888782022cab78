"""The L0 protocol (seed 002): payloads, the table of message families, recursion depth. All pure."""
