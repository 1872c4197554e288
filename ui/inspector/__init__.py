"""What the model thought of one token."""
