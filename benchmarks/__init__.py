"""``make bench``: ratios against limits that are measured in the same run."""
