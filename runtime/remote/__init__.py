"""A model on a server as a `LanguageModel`: `connect`, a transport over HTTP, and what each kind of server speaks."""
