"""The comparison of one text under two models."""
