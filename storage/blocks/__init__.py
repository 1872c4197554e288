"""KV blocks on disk: a second SQLite file, opened by the engine process alone, so that a lost cache can never touch text.

Nothing in it is worth keeping at any price. A file that is broken, or not one of ours, is moved aside and made anew; a block
whose SHA-256 does not fit is dropped; only a file of a newer version is left where it is. All errors are `OSError`s, so that
callers need to know nothing of SQLite.
"""
