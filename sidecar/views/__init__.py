"""What the command line shows of a log: catalog, turns, one event in a line, finding what a person named."""
