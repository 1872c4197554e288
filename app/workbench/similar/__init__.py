"""The turns of a session beside one of them: what was said, the vectors of it, their order."""
