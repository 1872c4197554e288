"""Sessions: a path of tokens in the caller's process, whose KV is in the engine.

A `Session` holds ids with their segments, and uses the public members of any `LanguageModel`. The engine's trie shares KV: a
fork costs nothing, and KV that any request computed is reused. A pin (`LanguageModel.pin`) keeps the session's path in memory.

The contract follows contenox's session (ensure a prefix, prefill a suffix, decode, report the resident tokens) and OxiLLaMa's
primitives (prefill, continue from known logits, truncate).
"""
