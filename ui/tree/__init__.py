"""The full-window tree: all turns of all branches as an outline."""
