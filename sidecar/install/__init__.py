"""Installing: the plugin file and npm's settings."""
