"""What stands over the transcript: cards, the entropy strip, previews, tool calls."""
