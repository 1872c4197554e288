"""Widgets over the transcript: cards, the entropy strip, previews, tool calls."""
