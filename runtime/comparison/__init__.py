"""One text under two models: what either thinks of it, side by side."""
