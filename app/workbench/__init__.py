"""The use cases of the app, without Qt: what happens when a message is sent, a branch made, a session opened."""

from app.workbench.workbench import AppWorkbench, Services

__all__ = ["AppWorkbench", "Services"]
