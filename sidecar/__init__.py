"""The process next to OpenCode: receives hooks over the link, writes them to the log, and answers the command line."""
