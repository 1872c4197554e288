"""Comparisons of branches, continuations, models and turns."""
