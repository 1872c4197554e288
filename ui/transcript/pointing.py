"""What shows over a token: the card under the mouse, and what another token in its place would lead to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from PySide6.QtCore import QObject, QPoint

from ui.second.words import compared_lines
from ui.transcript.card import Card, CardContent, card_content
from ui.transcript.ghost import ghost_of
from ui.transcript.path import Path
from ui.transcript.tokens_pane import TokensPane
from ui.transcript.visible import visible_bytes
from ui.transcript.wording import words_before, words_of

Resolver = Callable[[Sequence[int]], Sequence[bytes]]


class Pointing(QObject):
    """Part of `TranscriptView`.

    Args:
        tokens: Says which token the mouse is over, and draws the preview.
        card: Shown over that token.
        path: Has the tokens' numbers.
    """

    def __init__(self, tokens: TokensPane, card: Card, path: Path) -> None:
        super().__init__(tokens)
        self._tokens, self._card, self._path = tokens, card, path
        self.resolve: Resolver = lambda ids: [b""] * len(ids)  # the bytes of alternatives
        tokens.token_hovered.connect(self._hovered)

    def preview(self, node_id: int, index: int, token_id: int) -> None:
        """Shows an alternative in place of a token; what follows it is not known yet."""
        data = list(self.resolve([token_id])) or [b""]
        self._tokens.set_ghost(ghost_of(node_id, index, token_id, data[0]))

    def show_preview(self, node_id: int, index: int, token_id: int, words: Sequence[bytes]) -> None:
        """What would follow; ignored if nobody looks at that place any more."""
        ghost = self._tokens.ghost
        if ghost is not None and (ghost.node_id, ghost.index, ghost.token_id) == (node_id, index, token_id):
            self._tokens.set_ghost(ghost.with_tail(b"".join(words)))

    def _hovered(self, at: tuple[int, int] | None) -> None:
        content = None if at is None else self._content(*at)
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
