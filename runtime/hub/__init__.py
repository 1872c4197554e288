"""Models from a Hugging Face hub: looked up, weighed and fetched in a child process, on request only."""
