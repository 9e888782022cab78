"""The runtime: agents with exactly-once state, and effects with a ledger. Imports only stdlib, pydantic and streams."""
