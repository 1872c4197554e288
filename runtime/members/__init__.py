"""The groups of members that `LanguageModel` consists of, each a Protocol of its own."""
