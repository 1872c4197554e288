"""From what a user names (an id, a folder, a GGUF file) to a model folder that can be loaded safely."""
