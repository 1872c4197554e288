"""A pseudo language: English with accents, two fifths longer, to test whether the window has room for a translation."""

from __future__ import annotations

import re
from collections.abc import Iterator

from PySide6.QtCore import QTranslator
from PySide6.QtWidgets import QAbstractButton, QLabel, QToolButton, QWidget

from ui.widgets.labels import ElidedLabel

LONGER = 0.4
_ACCENTED = str.maketrans("AaCcEeIiNnOoSsUuYyZz", "ÅåÇçËëÎîÑñÖöŠšÜüÝýŽž")
_KEPT = re.compile(r"\{[^{}]*\}|<[^<>]*>|&")  # placeholders, markup and mnemonics
_FILLER = "lörem ipšüm dölör šit åmet "


def pseudo(text: str) -> str:
    """The text in the pseudo language."""
    if not any(map(str.isalpha, text)):
        return text
    parts, at = [], 0
    for kept in _KEPT.finditer(text):
        parts += [text[at : kept.start()].translate(_ACCENTED), kept.group()]
        at = kept.end()
    parts.append(text[at:].translate(_ACCENTED))
    more = max(round(len(_KEPT.sub("", text)) * LONGER), 1)
    return "".join(parts) + (_FILLER * (more // len(_FILLER) + 1))[:more].replace(" ", "·")


class Pseudo(QTranslator):
    """Translates everything."""

    def isEmpty(self) -> bool:  # noqa: N802  # Qt's
        return False

    def translate(self, context: str, sourceText: str, disambiguation: str | None = None, n: int = -1) -> str:  # noqa: N803  # Qt's names
        del context, disambiguation, n
        return pseudo(sourceText)


def clipped(top: QWidget) -> Iterator[str]:
    """The visible labels and buttons that have less room than their text needs, and show no ellipsis."""
    for part in [top, *top.findChildren(QWidget)]:
        if not part.isVisible() or part.window() is not top.window() or isinstance(part, ElidedLabel):
            continue
        if not isinstance(part, QLabel | QAbstractButton) or not part.text():
            continue
        if isinstance(part, QToolButton) and not part.toolButtonStyle().name.startswith("ToolButtonText"):
            continue
        wraps = isinstance(part, QLabel) and part.wordWrap()
        needed = part.heightForWidth(part.width()) if wraps else part.sizeHint().width()
        room = part.height() if wraps else part.width()
        if needed > room + 1:
            yield f"{type(part).__name__} {part.text()!r}: {needed} of {room} px {'high' if wraps else 'wide'}"
