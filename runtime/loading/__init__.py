"""From a name or a file to a model folder that can be loaded safely."""
