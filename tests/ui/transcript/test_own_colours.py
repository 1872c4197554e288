"""Text of the user is coloured with half the strength of the text of the model."""

from __future__ import annotations

import pytest
from PySide6.QtGui import QColor

from tests.ui.transcript.conftest import Show
from tests.ui.transcript.samples import session, turn, written
from ui import OwnColours
from ui.theme import DARK, HIGH_DARK, HIGH_LIGHT, LIGHT, Palette
from ui.theme.scheme import HALF, current_theme
from ui.transcript import TranscriptView

STRONGEST = "Zanzibar=e"


def ground(view: TranscriptView, node_id: int) -> QColor:
    """The colour behind a turn's first token."""
    box = view.tokens.token_box(node_id, 0)
    assert box is not None
    return view.tokens.viewport().grab().toImage().pixelColor(box.left() + 3, box.top() + 2)


def between(one: str, other: str) -> tuple[int, ...]:
    a, b = QColor(one), QColor(other)
    return tuple(int(getattr(a, part)() * HALF + getattr(b, part)() * (1 - HALF)) for part in ("red", "green", "blue"))


def near(colour: QColor, wanted: tuple[int, ...]) -> bool:
    return all(abs(have - want) <= 2 for have, want in zip(rgb(colour.name()), wanted, strict=True))


def rgb(name: str) -> tuple[int, ...]:
    colour = QColor(name)
    return colour.red(), colour.green(), colour.blue()


def test_text_of_the_user_has_half_the_colour_of_the_models_text(show: Show) -> None:
    view = show(session(turn(1, "user", written(STRONGEST)), turn(2, "assistant", written(STRONGEST))))
    full = LIGHT.surprise[5]
    assert full is not None
    assert near(ground(view, 2), rgb(full))
    assert near(ground(view, 1), between(full, LIGHT.window))
    current_theme().show(OwnColours.FULL, developer=False)
    view.set_palette_of(LIGHT)
    assert near(ground(view, 1), rgb(full))
    current_theme().show(OwnColours.NONE, developer=False)
    view.set_palette_of(LIGHT)
    assert near(ground(view, 1), rgb(LIGHT.window))


@pytest.mark.parametrize("palette", [LIGHT, DARK, HIGH_LIGHT, HIGH_DARK])
def test_text_on_half_a_colour_has_enough_contrast(palette: Palette) -> None:
    least = 7.0 if palette in (HIGH_LIGHT, HIGH_DARK) else 4.5
    for colour in palette.surprise[1:]:
        assert colour is not None
        assert contrast(rgb(palette.text), between(colour, palette.window)) >= least


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The contrast ratio of WCAG 2.2."""

    def light(colour: tuple[int, ...]) -> float:
        parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
