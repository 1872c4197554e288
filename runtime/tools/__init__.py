"""Tool calls: from a model's text to names and arguments. Nothing here executes or evaluates anything."""
