"""Git worktrees for background work: made, filled, collected and applied."""
