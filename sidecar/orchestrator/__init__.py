"""Orchestration: intents that outlive every process, phantom sessions, notices that provably arrive (seed 004)."""
