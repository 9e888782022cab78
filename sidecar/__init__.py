"""The process next to OpenCode: takes hooks over the link, writes them to the log, answers the command line."""
