"""The scheduler: packs queries, prompts and generations into forwards so that no token is computed twice."""
