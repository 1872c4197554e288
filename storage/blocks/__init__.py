"""KV blocks on disk: a second SQLite file, opened by the engine process alone, so that its loss cannot affect text.

It is a cache. A broken or foreign file is moved aside and a new one made; a block whose SHA-256 does not match is dropped; a
file of a newer version is left unchanged. All errors are `OSError`s, so that callers do not depend on SQLite.
"""
