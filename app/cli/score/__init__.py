"""What a model thinks of texts: `elsewise score`, `lens` and `embed`."""
