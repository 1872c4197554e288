"""Groups of members of `LanguageModel`."""
