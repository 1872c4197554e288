"""KV by token paths: the trie of cached segments, and content-addressed blocks of 64 tokens that outlive the process."""
