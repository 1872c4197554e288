"""The path as a text to read."""
