"""Speculative decoding: several tokens guessed cheaply, and checked by one forward of the model."""
