"""A model on a server as a `LanguageModel`: `connect`, a transport over HTTP, and the dialect of each kind of server."""
