"""Scrolling, pages, search and what stands beside a turn."""
