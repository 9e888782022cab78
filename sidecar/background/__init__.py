"""Orchestration: intents that outlive every process, phantom sessions, and notices that provably arrive."""
