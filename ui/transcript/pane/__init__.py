"""Scrolling, pages, search, and the rail and line of a turn."""
