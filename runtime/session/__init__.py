"""Sessions: a path of tokens at the caller's side, whose KV stays in the engine.

A `Session` holds ids, what they are called and where they came from; it talks to any `LanguageModel` by its public members.
Where KV is, and what is shared by whom, is the trie's business: a fork costs nothing, and what was computed by anybody is
found. A pin (`LanguageModel.pin`) keeps the session's path in memory.

The contract follows contenox's session (ensure a prefix, prefill a suffix, decode, report what is resident) and OxiLLaMa's
primitives (prefill, go on from known logits, truncate).
"""
