"""The full-window tree."""
