"""The use cases of the app, without Qt: what happens when somebody sends, branches, stops, reopens."""

from app.workbench.workbench import AppWorkbench

__all__ = ["AppWorkbench"]
