"""`LanguageModel` and what makes one."""
