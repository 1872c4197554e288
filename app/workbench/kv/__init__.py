"""Keys and values of the running model: in memory, in the block file, in portable files."""
