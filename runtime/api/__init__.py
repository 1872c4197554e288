"""`LanguageModel`, the capabilities of its engine, and `load`."""
