"""KV that outlives the process: saved, restored, copied."""
