"""Files, locks and threads of the operating system."""
