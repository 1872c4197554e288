"""Prefill of prompts and queries, and the distributions after them."""
