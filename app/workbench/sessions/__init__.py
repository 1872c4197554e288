"""The sessions of the store: listed, opened, copied, one branch of each shown."""
