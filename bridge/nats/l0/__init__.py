"""The L0 protocol: its payloads, the table of its messages, and the recursion depth. All pure."""
