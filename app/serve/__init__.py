"""An OpenAI-compatible HTTP server for one model, with vLLM's names where vLLM has the feature."""

from app.serve.app import bind, build_app, serve
from app.serve.engine import Engine
from app.serve.security import Access, checked_keys, is_loopback

__all__ = ["Access", "Engine", "bind", "build_app", "checked_keys", "is_loopback", "serve"]
