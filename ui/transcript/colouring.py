"""What the spans of tokens are coloured by: a number of their own, or what a second model says of them."""

from __future__ import annotations

from ui.second.compared import Compared
from ui.theme.palette import Palette
from ui.transcript.card import Card
from ui.transcript.ink import Ink
from ui.transcript.measure import Measure
from ui.transcript.path import Path
from ui.transcript.read_pane import ReadPane
from ui.transcript.tokens_pane import TokensPane


class Colouring:
    """Part of `TranscriptView`. Nothing is laid out again for other colours.

    Args:
        tokens: Shows them.
        read: Has the same palette.
        card: Tells the numbers of a comparison while there is one.
        path: Has the numbers.
        palette: To begin with.
    """

    def __init__(self, tokens: TokensPane, read: ReadPane, card: Card, path: Path, palette: Palette) -> None:
        self._tokens, self._read, self._card, self._path = tokens, read, card, path
        self._palette = palette

    def set_palette_of(self, palette: Palette) -> None:
        """Other colours for the same."""
        self._palette = palette
        self._ink()

    def colour_by(self, measure: Measure) -> None:
        """Another number of the tokens' own."""
        if measure is not self._path.measure:
            self._path.colour_by(measure)
            self._tokens.repaint_numbers()

    @property
    def shows_difference(self) -> bool:
        """Whether a comparison colours the tokens."""
        return self._path.shows_difference

    def show_compared(self, compared: Compared | None, *, difference: bool) -> None:
        """The numbers of a second model are known; None: not any more.

        Args:
            compared: They.
            difference: Whether they colour the tokens, and what is disagreed on is underlined.
        """
        self._path.compare(compared, coloured=difference)
        self._ink()
        self._tokens.repaint_numbers()
        self._card.leave()

    def _ink(self) -> None:
        ink = Ink(self._palette, diverging=self._path.shows_difference)
        for pane in (self._tokens, self._read):
            pane.set_ink(ink)
