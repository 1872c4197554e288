"""Scripts that make what the repository ships: the sample session, the pictures."""
