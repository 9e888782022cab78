"""Effects: actions on the outside world, with a policy, a ledger, and reconciliation of what is in doubt."""
