"""Computations on rows of a vocabulary: normalisers, ranks, sorted rows, stage tables."""
