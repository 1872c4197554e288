"""The tree of a session: its nodes, the tokens along a path, what is shown of it."""
