"""Recording from links and spools into the log: ingest, spools of dead processes; exclusion."""
