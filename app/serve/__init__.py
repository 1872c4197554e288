"""An OpenAI-compatible HTTP server for one model, with vLLM's names where vLLM has the feature."""

from app.serve.app import bind, build_app, serve
from app.serve.security import Access, checked_keys, is_loopback
from app.serve.served_model import ServedModel

__all__ = ["Access", "ServedModel", "bind", "build_app", "checked_keys", "is_loopback", "serve"]
