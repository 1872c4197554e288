"""What every layer shares: data files of the app (importlib.resources), how files are opened and children started."""
