"""The conversation, as text and as tokens."""
