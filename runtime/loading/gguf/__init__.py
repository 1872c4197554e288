"""GGUF files: checked byte by byte before anything else reads them, then turned into plain arrays."""
