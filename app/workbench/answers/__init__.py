"""Answers: from the message to the last token on the disk, one or several side by side."""
