"""Data files of the app, read by importlib.resources."""
