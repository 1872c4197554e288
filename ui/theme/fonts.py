"""Fonts: Inter for the interface and JetBrains Mono for tokens, both shipped; on macOS those of the system.

Sizes are logical pixels (points on macOS) at 100 % text, multiplied by the text size of the settings. Digits are tabular
everywhere.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterable
from functools import cache
from importlib import resources

from PySide6.QtCore import QLoggingCategory, QObject, QTimer
from PySide6.QtGui import QFont, QFontDatabase, QGuiApplication, QTextLayout

logger = logging.getLogger(__name__)

BASE_PX = 13
_EMOJI = ("Apple Color Emoji", "Noto Color Emoji")
_SCRIPTS = (  # system fonts for scripts that Inter lacks, without CJK, which depends on the locale; macOS chooses itself
    ("Noto Sans Thai", "Noto Sans Thai UI", "Leelawadee UI", "Loma", "Garuda", "Sarabun"),
    ("Noto Sans Arabic", "Noto Sans Arabic UI", "Noto Naskh Arabic", "Segoe UI"),
    ("Noto Sans Hebrew", "Segoe UI"),
    ("Noto Sans Devanagari", "Noto Sans Devanagari UI", "Nirmala UI", "Lohit Devanagari"),
    ("Noto Sans Bengali", "Nirmala UI", "Lohit Bengali"),
    ("Noto Sans Tamil", "Nirmala UI", "Lohit Tamil"),
    ("Noto Sans Georgian", "Sylfaen"),
    ("Noto Sans Armenian", "Sylfaen"),
    ("Noto Sans Ethiopic", "Ebrima"),
    ("Noto Sans Khmer", "Khmer OS System", "Leelawadee UI"),
)


def register_fonts() -> None:
    """Registers the shipped fonts with Qt; a file that cannot be loaded is logged, and another font is used."""
    QLoggingCategory.setFilterRules("qt.text.font.db.info=false")  # a line for each face that lacks a script
    for file in (resources.files("resources") / "fonts").iterdir():
        if not file.name.endswith((".otf", ".ttf")):
            continue
        if QFontDatabase.addApplicationFontFromData(file.read_bytes()) < 0:
            logger.warning("font %s could not be loaded; the system's face is used", file.name)


def interface_font(px: float = BASE_PX, weight: QFont.Weight = QFont.Weight.Normal) -> QFont:
    """The font of everything but tokens and bytes."""
    font = QFont()
    if sys.platform == "darwin":
        font.setFamily(".AppleSystemUIFont")
    else:
        font.setFamilies(["Inter", "Noto Sans", *_EMOJI, *_script_faces()])
    return _dressed(font, px, weight)


def faces_for_scripts(installed: Collection[str]) -> list[str]:
    """The first installed family for each script of `_SCRIPTS`."""
    found = (next((face for face in choices if face in installed), None) for choices in _SCRIPTS)
    return [face for face in found if face is not None]


@cache
def _script_faces() -> tuple[str, ...]:
    return tuple(faces_for_scripts(set(QFontDatabase.families())))


def mono_font(px: float = 12.5, weight: QFont.Weight = QFont.Weight.Normal) -> QFont:
    """The font of tokens and bytes."""
    font = QFont()
    font.setFamilies(
        ["SF Mono", "Menlo", *_EMOJI] if sys.platform == "darwin" else ["JetBrains Mono", "DejaVu Sans Mono", *_EMOJI]
    )
    font.setStyleHint(QFont.StyleHint.Monospace)
    return _dressed(font, px, weight)


def caption_font() -> QFont:
    """The font of section heads: small, spaced capitals (texts are passed in normal case)."""
    font = interface_font(10.5, QFont.Weight.DemiBold)
    font.setCapitalization(QFont.Capitalization.AllUppercase)
    font.setLetterSpacing(QFont.SpacingType.PercentageSpacing, 106)
    return font


def text_scale() -> float:
    """The scale of all text; 1 is 100 %."""
    return _Size.scale


def set_text_scale(scale: float) -> None:
    """Sets the scale of fonts made from now on; `theme.text_size` scales the existing ones."""
    _Size.scale = scale


def scaled(px: float) -> int:
    """Scales pixels with the text size."""
    return round(px * _Size.scale)


class _Size:
    """The text scale of the application."""

    scale = 1.0


def _dressed(font: QFont, px: float, weight: QFont.Weight) -> QFont:
    # Qt's pixel sizes are whole numbers; points are not. A logical screen has 72 dots an inch on macOS, 96 elsewhere.
    screen = QGuiApplication.primaryScreen()
    font.setPointSizeF(px * _Size.scale * 72 / (screen.logicalDotsPerInchY() if screen is not None else 96))
    font.setWeight(weight)
    font.setFeature(QFont.Tag("tnum"), 1)
    font.setHintingPreference(QFont.HintingPreference.PreferNoHinting)
    return font


SCRIPTS = "ܐހकকਕકକகకಕകකกកשم한好"  # a letter of each
FIRST_MS, REST_MS = 500, 5  # after the first session is shown, and before an engine can answer


class FallbackFaces(QObject):
    """Lets Qt find the fallback font of each script in advance, one script per turn of the event loop.

    Qt searches all installed fonts when a font first meets a complex script that it lacks: some 15 ms, and 60 ms the first
    time. Otherwise a frame of a streamed answer would wait for that.

    Args:
        fonts: The fonts of texts.
        parent: Owns this object.
    """

    def __init__(self, fonts: Iterable[QFont], parent: QObject) -> None:
        super().__init__(parent)
        self.left = [(font, letter) for font in fonts for letter in SCRIPTS]
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._look)
        self._timer.start(FIRST_MS)

    def _look(self) -> None:
        font, letter = self.left.pop(0)
        layout = QTextLayout(letter, font)
        layout.beginLayout()
        layout.createLine()
        layout.endLayout()
        if self.left:
            self._timer.start(REST_MS)
