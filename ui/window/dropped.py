"""What becomes of files that are dropped on the window or pasted: each goes where its kind belongs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from ui.port import translate

SESSION_MARK = b'"elsewise.session"'  # in the first bytes of a session that was exported as JSON
_HEAD_BYTES = 200
PICTURES = frozenset(["avif", "bmp", "gif", "heic", "ico", "jpeg", "jpg", "png", "tif", "tiff", "webp"])


class DroppedFiles(QObject):
    """Says what each file is."""

    text_wanted = Signal(str)  # path: it goes with the message
    session_wanted = Signal(object)  # Path: it is imported
    model_wanted = Signal(object)  # Path of a GGUF file, or of a folder with a model
    refused = Signal(str)

    def take(self, paths: Sequence[Path]) -> None:
        """Hands on each of them; what cannot be used is named."""
        pictures = []
        for path in paths:
            kind = path.suffix.lower().removeprefix(".")
            if path.is_dir() or kind == "gguf":
                self.model_wanted.emit(path)
            elif kind == "elsewise" or (kind == "json" and _is_session(path)):
                self.session_wanted.emit(path)
            elif kind in PICTURES:
                pictures.append(path.name)
            else:
                self.text_wanted.emit(str(path))
        if pictures:
            self.refuse_pictures(", ".join(pictures))

    def refuse_pictures(self, names: str) -> None:
        """Says why nothing comes of pictures."""
        words = translate("DroppedFiles", "{0}: the models here read text and no pictures")
        self.refused.emit(words.format(names or translate("DroppedFiles", "a picture")))


def _is_session(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return SESSION_MARK in file.read(_HEAD_BYTES)
    except OSError:
        return False  # whoever reads it next says why it cannot be read
