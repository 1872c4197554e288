"""KV that outlives the process: content-addressed blocks of 64 tokens, kept by the application's `BlockStore`."""
