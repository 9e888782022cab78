"""What needs a person: questions, approvals, alerts, and the channels and links that carry the answers."""
