"""Reservations: which session may edit which paths of a project, on all machines that share the agent's log."""
