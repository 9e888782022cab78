"""Effects: actions on the outside world, with a policy, a ledger, and reconciliation of effects whose outcome is in
doubt.
"""
