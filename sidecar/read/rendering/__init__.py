"""Events in words: on one line, in full, and without the markup that models read."""
