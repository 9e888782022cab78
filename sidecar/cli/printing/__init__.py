"""How commands print: tables, records, transcripts, progress and the pager."""
