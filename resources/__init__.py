"""What every layer shares: data files of the app, read by importlib.resources, and how files from elsewhere are opened."""
