"""Groups of members of `LanguageModel`, a Protocol each."""
