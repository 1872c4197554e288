"""KV that outlives the process: content-addressed blocks of 64 tokens in the application's `BlockStore`."""
