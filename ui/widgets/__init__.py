"""Widgets and texts that all parts of the window share."""
