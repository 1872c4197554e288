"""The path as tokens."""
