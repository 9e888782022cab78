"""The L0 protocol (seed 002): its payloads, the table of its messages, and the recursion depth. All pure."""
