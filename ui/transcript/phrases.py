"""The words that the conversation paints, in the window's language."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication


def said(text: str) -> str:
    """The text in the window's language."""
    return QCoreApplication.translate("Transcript", text)
