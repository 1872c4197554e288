"""The numbers behind a token, a path and the cache."""

from ui.inspector.panel import Inspector

__all__ = ["Inspector"]
