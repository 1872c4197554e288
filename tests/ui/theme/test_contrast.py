"""The contrast of text on every background by WCAG 2.2, and when high contrast is used."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessibilityHints, QColor
from PySide6.QtWidgets import QApplication

from ui import DARK, HIGH_DARK, HIGH_LIGHT, LIGHT, Contrast, Motion, Palette, Scheme, apply_theme
from ui.theme import current_theme

READABLE = [(LIGHT, 4.5), (DARK, 4.5), (HIGH_LIGHT, 7.0), (HIGH_DARK, 7.0)]
GROUNDS = ("window", "sidebar", "panel", "card", "code", "selection")


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    made = QColor(colour)
    parts = (made.redF(), made.greenF(), made.blueF())
    red, green, blue = (p / 12.92 if p <= 0.04045 else float(((p + 0.055) / 1.055) ** 2.4) for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast ratio, between 1 and 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_ratios_equal_those_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("palette", "least"), READABLE)
def test_text_has_enough_contrast_on_every_step_of_the_ramps(palette: Palette, least: float) -> None:
    *steps, strongest = palette.surprise[1:]
    assert min(contrast(palette.text, step) for step in steps if step) >= least
    assert contrast(palette.on_strongest, str(strongest)) >= least
    assert min(contrast(palette.text, step) for step in palette.difference[1:] if step) >= least


@pytest.mark.parametrize(("palette", "least"), READABLE)
def test_the_ramp_is_readable_without_colour_vision(palette: Palette, least: float) -> None:
    del least
    from_ground = [contrast(palette.window, step) for step in palette.surprise[1:] if step]
    assert from_ground == sorted(from_ground)
    assert all(later >= 1.1 * one for one, later in pairwise(from_ground))


@pytest.mark.parametrize(("palette", "least"), READABLE)
def test_words_have_enough_contrast_on_every_background(palette: Palette, least: float) -> None:
    grounds = [getattr(palette, name) for name in GROUNDS]
    for name in ("text", "soft", "accent", "literal"):
        assert min(contrast(getattr(palette, name), ground) for ground in grounds) >= least, name
    assert contrast(palette.on_accent, palette.accent) >= least
    assert contrast(palette.text, palette.bar_rest) >= least  # the selection in a field
    assert contrast(palette.warm, palette.window) >= least


@pytest.mark.parametrize("palette", [HIGH_LIGHT, HIGH_DARK])
def test_in_high_contrast_faint_text_and_lines_have_enough_contrast(palette: Palette) -> None:
    assert min(contrast(palette.faint, getattr(palette, ground)) for ground in GROUNDS) >= 7
    for line in (palette.hairline, palette.disk, palette.bar):
        assert contrast(line, palette.window) >= 3


@pytest.fixture
def hints(app: QApplication, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Qt.ContrastPreference]]:
    """The contrast preference of the system: the last of the list."""
    said = [Qt.ContrastPreference.NoPreference]
    monkeypatch.setattr(QAccessibilityHints, "contrastPreference", lambda _self: said[-1])
    yield said
    monkeypatch.undo()
    apply_theme(app, Scheme.LIGHT, Contrast.SYSTEM, Motion.SYSTEM)


def test_contrast_follows_the_system_unless_the_user_chooses_it(app: QApplication, hints: list[Qt.ContrastPreference]) -> None:
    theme = apply_theme(app, Scheme.LIGHT, Contrast.SYSTEM)
    assert theme is current_theme()
    assert theme.palette is LIGHT
    hints.append(Qt.ContrastPreference.HighContrast)
    app.styleHints().accessibility().contrastPreferenceChanged.emit(hints[-1])
    assert theme.palette is HIGH_LIGHT
    apply_theme(app, Scheme.DARK)
    assert theme.palette is HIGH_DARK
    apply_theme(app, Scheme.DARK, Contrast.NORMAL)
    assert theme.palette is DARK
    hints.append(Qt.ContrastPreference.NoPreference)
    apply_theme(app, Scheme.DARK, Contrast.HIGH)
    assert theme.palette is HIGH_DARK
