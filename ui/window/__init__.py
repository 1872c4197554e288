"""The window: what it asks of the controller, its menus and keys, from start to end."""
