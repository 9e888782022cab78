"""Records what OpenCode did: takes items from links, spools, services and old sessions into the log."""
