"""The main window: its parts, their wiring to the controller, from start to end."""
