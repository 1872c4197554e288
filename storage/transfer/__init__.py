"""Export and import of sessions: JSON, Markdown, CSV, lists of messages, portable files.

Everything streams: neither side holds more than a few thousand tokens. Exports read the state of one moment over a connection
of their own, and their files appear only when complete. Imports write rows in slices of a few milliseconds, which stay hidden
until a flag is changed at the end.

A session as JSON is one object with members in this order::

    {"format": "elsewise.session", "version": 1,
     "session": {"title", "created", "updated", "pinned", "current": node or null, "setup": {...}, "more": {...}},
     "models": [{"kv_fingerprint", "info": {...}}],
     "nodes": [{"id", "parent": node or null, "at_token", "at_byte", "role", "turn_start", "text", "status",
                "finish_reason", "token_count", "kv_fingerprint", "stats": {...}, "created", "more": {...}}],
     "tokens": [{"node", "kv_fingerprint", "first", "count", "columns": {name: {"dtype", "shape", "values" or "base64"}}}]}

A node is a run of tokens: it leaves its parent after `at_token` tokens (null: at the parent's end), and comes after it in the
file. `tokens` are ranges of a node's tokens, the newest last: where two ranges of one model overlap, the later one counts.
`values` are the numbers of a column in row order, null for not-a-number; `base64` has the column's little-endian bytes. Numbers
keep every bit. `more` has columns that newer versions of the store add. Adapters of an answer are written as name, scale and
digest, without their folder. `setup` has the settings of the session (options, preset, form of its answers, guesses), if any,
without its stack of adapters and its hidden branches.
"""
