"""Colours of both panes, and the card and preview at the pointer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace
from PySide6.QtCore import QObject, QPoint

from ui.comparison.model_facts import Compared, compared_lines
from ui.port import TurnDepth
from ui.theme.palette import Palette
from ui.theme.scheme import current_theme
from ui.transcript.measure import Measure
from ui.transcript.overlay.card import Card, CardContent, card_content, words_before, words_of
from ui.transcript.overlay.ghost import ghost_of
from ui.transcript.path import TranscriptPath
from ui.transcript.read_mode.read_pane import ReadPane
from ui.transcript.text.ink import Ink
from ui.transcript.tokens_mode.tokens_pane import TokensPane
from ui.widgets.visible import visible_bytes


class Colouring:
    """Sets the colours of the panes of a `TranscriptView`, without a new layout.

    Args:
        tokens: The pane whose tokens are coloured.
        read: Has the same palette.
        card: Closed when the comparison changes.
        path: Has the numbers.
        palette: The first palette.
    """

    def __init__(self, tokens: TokensPane, read: ReadPane, card: Card, path: TranscriptPath, palette: Palette) -> None:
        self._tokens, self._read, self._card, self._path = tokens, read, card, path
        self._palette = palette

    def set_palette_of(self, palette: Palette) -> None:
        self._palette = palette
        self._ink()

    def colour_by(self, measure: Measure) -> None:
        if measure is not self._path.measure:
            self._path.colour_by(measure)
            self._tokens.repaint_numbers()

    def show_depth(self, node_id: int, depth: TurnDepth) -> None:
        """Takes the layers of a turn, which `Measure.LAYER` shows."""
        self._path.take_depth(node_id, depth)
        self._tokens.repaint_numbers()

    @property
    def shows_difference(self) -> bool:
        """Whether a comparison colours the tokens."""
        return self._path.shows_difference

    def show_compared(self, compared: Compared | None, *, difference: bool) -> None:
        """Takes the numbers of a second model, or None to remove them.

        Args:
            compared: The numbers.
            difference: Whether they colour the tokens, with disagreements underlined.
        """
        self._path.compare(compared, coloured=difference)
        self._ink()
        self._tokens.repaint_numbers()
        self._card.leave()

    def _ink(self) -> None:
        diverging = self._path.shows_difference
        own = 1.0 if diverging else current_theme().own_strength  # at full strength, so that no disagreement is missed
        ink = Ink(self._palette, diverging, own)
        for pane in (self._tokens, self._read):
            pane.set_ink(ink)


Resolver = Callable[[Sequence[int]], Sequence[bytes]]


class Pointing(QObject):
    """Shows the card of the token under the pointer, and previews of alternatives, in a `TranscriptView`.

    Args:
        tokens: Reports the token under the mouse, and draws the preview.
        card: Shown over that token.
        path: Has the tokens' numbers.
    """

    def __init__(self, tokens: TokensPane, card: Card, path: TranscriptPath) -> None:
        super().__init__(tokens)
        self._tokens, self._card, self._path = tokens, card, path
        self.shown = True  # False while the pinned token has its card
        self.resolve: Resolver = lambda ids: [b""] * len(ids)  # the bytes of alternatives
        tokens.token_hovered.connect(self._hovered)

    def preview(self, node_id: int, index: int, token_id: int) -> None:
        """Shows an alternative in place of a token; the text after it is not known yet."""
        data = list(self.resolve([token_id])) or [b""]
        self._tokens.set_ghost(ghost_of(node_id, index, token_id, data[0]))

    def show_preview(self, node_id: int, index: int, token_id: int, words: Sequence[bytes]) -> None:
        """Shows the text that would follow; ignored if another alternative is previewed by now."""
        ghost = self._tokens.ghost
        if ghost is not None and (ghost.node_id, ghost.index, ghost.token_id) == (node_id, index, token_id):
            self._tokens.set_ghost(ghost.with_tail(b"".join(words)))

    def _hovered(self, at: tuple[int, int] | None) -> None:
        content = None if at is None or not self.shown else self._content(*at)
        box = None if at is None else self._tokens.token_box(*at)
        if content is None or box is None:
            self._card.leave()
            return
        viewport = self._tokens.viewport()
        offset = viewport.mapTo(self._tokens, QPoint(0, 0))
        self._card.show_at(content, box.translated(offset), viewport.geometry())

    def _content(self, node_id: int, index: int) -> CardContent | None:
        turn, record = self._path.index(node_id), self._path.record(node_id, index)
        if turn is None or record is None:
            return None
        words = words_of(record, self.resolve(record.top_ids))
        content = card_content(record, words_before(self._path.turns, turn, index), words, visible_bytes(record.token_bytes))
        compared = self._path.compared
        facts = None if compared is None else compared.facts(node_id, index)
        return content if content is None or facts is None else replace(content, lines=compared_lines(facts))
