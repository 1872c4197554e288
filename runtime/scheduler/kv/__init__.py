"""Keys and values: workspaces, the memory budget, the cache and pins."""
