"""Structured output: grammars, and the state of one along an answer."""
