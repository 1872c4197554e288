"""The page of models: the shelf, downloads, and whether models fit into memory."""
