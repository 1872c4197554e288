"""Structured output: what a grammar is, and the state of one along an answer."""
