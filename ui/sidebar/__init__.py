"""Sessions and branches."""
