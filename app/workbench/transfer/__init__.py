"""Sessions out of the store and into it."""
