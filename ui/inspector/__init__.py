"""The inspector: tabs about a token, the path and the cache."""

from ui.inspector.panel import Inspector

__all__ = ["Inspector"]
