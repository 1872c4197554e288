"""KV blocks on disk, in a second SQLite file that only the engine process opens, so that its loss cannot affect text.

The file is a cache. A broken or foreign file is moved aside and replaced by a new one; a block whose SHA-256 does not match is
dropped; a file of a newer version is left unchanged. All errors are `OSError`s, so that callers do not depend on SQLite.
"""
