"""Decode: one token per step for each running generation."""
