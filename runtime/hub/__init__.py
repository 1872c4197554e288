"""Models from a Hugging Face hub: looked up, planned and fetched in a child process, on request only."""
