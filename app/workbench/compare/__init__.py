"""Comparisons: two branches, two models, turns of one session."""
