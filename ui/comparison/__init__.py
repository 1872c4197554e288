"""Branches, continuations, models and turns beside each other."""
