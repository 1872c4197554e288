"""Sessions out of the store and into it: JSON, Markdown, CSV, lists of messages, portable files.

Everything streams: neither side ever holds more than a few thousand tokens. Exports read one moment of the store over a
connection of their own and appear under their name only when they are whole. Imports write rows that are hidden until a
flag is flipped at the end, in slices of a few milliseconds.

A session as JSON is one object whose members stand in this order::

    {"format": "elsewise.session", "version": 1,
     "session": {"title", "created", "updated", "pinned", "current": node or null, "setup": {...}, "more": {...}},
     "models": [{"kv_fingerprint", "info": {...}}],
     "nodes": [{"id", "parent": node or null, "at_token", "at_byte", "role", "turn_start", "text", "status",
                "finish_reason", "token_count", "kv_fingerprint", "stats": {...}, "created", "more": {...}}],
     "tokens": [{"node", "kv_fingerprint", "first", "count", "columns": {name: {"dtype", "shape", "values" or "base64"}}}]}

A node is a run of tokens: it leaves its parent after `at_token` tokens (null: at its end) and stands behind it in the file.
`tokens` are ranges of a node's tokens, the newest last: where two of one model overlap, the later one counts. `values` are
the numbers of a column in row order, null for not-a-number; `base64` its little-endian bytes. Numbers keep every bit.
`more` holds what newer versions of the store know beside these. Adapters an answer was made under travel as name, scale and
digest, without their folder. `setup` is what the session is set to (options, preset, form of its answers, guesses), where it
is set to anything; its stack of adapters and which branches are out of sight stay here.
"""
