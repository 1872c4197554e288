"""What surrounds the transcript."""
