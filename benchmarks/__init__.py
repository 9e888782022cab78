"""``make bench``: performance as ratios to limits measured in the same run."""
