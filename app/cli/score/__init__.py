"""Commands that run a model over given texts: `elsewise score`, `lens` and `embed`."""
