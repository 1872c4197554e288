"""The app itself: command line, settings, use cases."""
