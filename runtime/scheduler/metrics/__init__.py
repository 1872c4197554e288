"""Counters, and the timings of single requests."""
