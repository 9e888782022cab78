"""What a person reads: sessions, turns, events and changes, made from a log's records."""
