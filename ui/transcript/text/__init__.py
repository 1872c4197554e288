"""Tokens as shaped, wrapped and painted text."""
