"""The turns that are like one of them: the panel over the conversation, its rows, and who keeps it in step."""
