"""Installing: the plugin file, npm's settings, service files."""
