"""Speculative decoding: several tokens are drafted cheaply and verified by one forward of the model."""
