"""Prompts and queries on their way in, and what is answered at their end."""
