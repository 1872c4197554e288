"""Widgets and numbers that every room uses."""
