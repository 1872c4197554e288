"""The conversation: its two renderings, the card over a token, and the entropy strip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QEvent, QObject, QTimer, Signal
from PySide6.QtWidgets import QApplication, QStackedWidget, QVBoxLayout, QWidget

from ui.port import SessionView, TokenRecord, TokenRun, TurnView
from ui.theme.palette import LIGHT, Palette
from ui.transcript.measure import Measure, Mode
from ui.transcript.overlay.card import Card
from ui.transcript.overlay.pointing import Colouring, Pointing, Resolver
from ui.transcript.overlay.strip import EntropyStrip
from ui.transcript.pane.find import Finder, TextMatch, beginning
from ui.transcript.pane.pane import OF_TURNS, Lacking, nothing_lacking
from ui.transcript.pane.selection import Veil
from ui.transcript.path import TranscriptPath, TranscriptTurn
from ui.transcript.read_mode.read_pane import ReadPane
from ui.transcript.text.faces import Faces
from ui.transcript.text.ink import Ink
from ui.transcript.tokens_mode.tokens_pane import TokensPane
from ui.widgets.controls import button, column_in

_FAR = 0.5  # of the viewport's height: farther above the end, a button leads to it


class TranscriptView(QWidget):
    """The middle of the window: shows a session's path and reports clicks. Knows no model and no store.

    `token_clicked` and `token_pinned` carry (node_id, index), an index into the run of the turn with that node.
    `token_pinned` is emitted for clicks, keys and lost pins, not for `set_pinned` and `tokens.clear_pin`.
    """

    token_clicked = Signal(int, int)
    token_pinned = Signal(object)  # (node_id, index) or None
    words_typed = Signal(str)  # first letter of a text, without a pinned token that it could replace
    preview_wanted = Signal(int, int, int)  # node_id, index, token_id; `show_preview` answers
    variant_requested = Signal(int)
    edit_requested = Signal(int)  # another version of a turn
    regenerate_requested = Signal(int)
    repeat_requested = Signal(int)
    continue_requested = Signal(int)
    text_requested = Signal(int)  # open the path of a turn as text
    model_requested = Signal()  # choose another model
    copy_requested = Signal(str)
    similar_requested = Signal(int)  # turns similar to this one
    earlier_requested = Signal()  # scrolled near to the first loaded turn of a long path
    earlier_texts_wanted = Signal()  # the texts of the turns before the loaded ones, for `take_earlier_texts`
    earlier_turn_wanted = Signal(int)  # load the path from this turn on: it contains a match
    found_changed = Signal(object, int)  # number of the shown match (from 0) or None, and the count of all matches
    column_changed = Signal(int, int)  # left edge and width of the text column, in this widget's pixels

    def __init__(self) -> None:
        super().__init__()
        self._path = TranscriptPath()
        self.lacking: Lacking = nothing_lacking
        self._under: dict[int, QWidget] = {}
        self.mode = Mode.TOKENS  # `set_mode` changes it
        ink, faces = Ink(LIGHT), Faces()
        self.tokens = TokensPane(ink, faces, self)
        self.read = ReadPane(ink, faces, self)
        self.strip = EntropyStrip(LIGHT, self)
        self.card = Card(LIGHT, self.tokens)
        self.colours = Colouring(self.tokens, self.read, self.card, self._path, LIGHT)
        self._pointing = Pointing(self.tokens, self.card, self._path)
        self._finder = Finder(self._path, self._show_match, self.earlier_texts_wanted.emit, self.earlier_turn_wanted.emit)
        self._stack, self._below = QStackedWidget(self), QWidget(self)
        self._stack.addWidget(self.tokens)
        self._stack.addWidget(self.read)
        self.veil = Veil(self._stack)
        self.latest = button(self.tr("Jump to latest ↓"), "quiet")
        self.latest.setParent(self._stack)
        self.latest.hide()
        self._latest_timer = QTimer(self, singleShot=True, interval=0)  # once per scroll, when the bar has its final place
        self._latest_timer.timeout.connect(self._show_latest)
        self._lay_out()
        self._connect()
        self.read.suspend()
        self.setFocusProxy(self.tokens)
        self.setAccessibleName(self.tr("Conversation"))
        self._show_strip()

    def _lay_out(self) -> None:
        self._strip_row = QVBoxLayout(self._below)
        self._strip_row.setContentsMargins(0, 0, 0, 0)
        self._strip_row.addWidget(self.strip)
        column_in(self, (self._stack, 1), self._below, spacing=0)

    def _connect(self) -> None:
        self.tokens.token_clicked.connect(self.token_clicked)
        self.tokens.token_pinned.connect(self.token_pinned)
        self.tokens.preview_wanted.connect(self.preview)
        self.strip.token_clicked.connect(self._strip_clicked)
        self.latest.clicked.connect(self._go_down)
        self._stack.installEventFilter(self)
        for pane in self._panes():
            pane.verticalScrollBar().valueChanged.connect(lambda _value: self._latest_timer.start())
            pane.verticalScrollBar().rangeChanged.connect(lambda _least, _most: self._latest_timer.start())
            pane.column_changed.connect(self._align)
            pane.beginning_near.connect(self._near_beginning)
            for name in OF_TURNS:
                getattr(pane, name).connect(getattr(self, name))

    def _near_beginning(self) -> None:
        if self._path.view is not None and self._path.view.earlier:
            self.earlier_requested.emit()

    def _panes(self) -> tuple[TokensPane, ReadPane]:
        return self.tokens, self.read

    @property
    def turns(self) -> Sequence[TranscriptTurn]:
        return self._path.turns

    @property
    def hover_shown(self) -> bool:
        """Whether a card is shown for the token under the pointer."""
        return self._pointing.shown

    @hover_shown.setter
    def hover_shown(self, shown: bool) -> None:  # a state, not an option
        self._pointing.shown = shown
        if not shown:
            self.card.leave()

    # ---- content --------------------------------------------------------------------------------------------------

    def set_session(self, view: SessionView) -> None:
        """Shows a session, or another path of it; turns that did not change keep their layout."""
        other = not self._path.is_of(view)
        if not other and self._path.parts_from(view):
            self.veil.fade(self._pane().viewport())
        changed = self._path.take(view)
        for pane in self._panes():
            pane.set_turns(self._path.turns, changed, to_end=other or pane.is_at_end)
        self.strip.set_turns(self._path.turns)
        self._show_strip()
        self._find_again()

    def update_turn(self, turn: TurnView) -> None:
        """Takes new numbers or another state of a turn; a turn that is not shown is ignored."""
        index = self._path.index(turn.node_id)
        if index is None:
            return
        self._path.turns[index].take(turn)
        for pane in self._panes():
            pane.turn_changed(index)
        self.strip.turn_changed(index)
        self._show_strip()

    def append_tokens(self, node_id: int, run: TokenRun) -> None:
        """Appends tokens to a turn, at a cost that depends on `run` alone; a turn that is not shown is ignored."""
        index = self._path.index(node_id)
        if index is None:
            return
        self._path.turns[index].append(run)
        for pane in self._panes():
            pane.tokens_appended(index)
        self.strip.turn_changed(index)
        if self._below.isHidden():
            self._show_strip()

    def set_mode(self, mode: Mode) -> None:
        """Changes the mode; the same token stays at the top."""
        if mode is self.mode:
            return
        old, new = (self.tokens, self.read) if mode is Mode.READ else (self.read, self.tokens)
        focused, held, anchor = old.hasFocus(), QApplication.focusWidget(), old.anchor()
        self.mode, self._finder.typeset = mode, mode is Mode.READ
        self.card.leave()
        self._stack.setCurrentWidget(new)
        old.suspend()
        old.show_under({})
        new.resume(anchor)
        new.show_under(self._under)
        if held is not None and any(part.isAncestorOf(held) for part in self._under.values()):
            held.setFocus()  # typing under a turn continues
        self._find_again()
        self._show_latest()
        self.setFocusProxy(new)
        if focused:
            new.setFocus()
        self._show_strip()

    def set_palette_of(self, palette: Palette) -> None:
        self.colours.set_palette_of(palette)
        self.strip.set_palette_of(palette)
        self.card.set_palette_of(palette)

    @property
    def measure(self) -> Measure:
        """The number that colours tokens."""
        return self._path.measure

    def set_text_scale(self, share: float = 1.0) -> None:
        """Sets the text size, as a share of the window's text size."""
        faces = Faces(share)
        for pane in self._panes():
            pane.set_faces(faces)
        self.card.set_scale(share)

    def set_template_visible(self, visible: bool) -> None:
        """Shows or hides the chat template's tokens in Tokens mode."""
        self._path.template = self._finder.template = visible
        self.tokens.set_template_visible(visible)
        if self._path.view is not None:
            self.set_session(self._path.view)

    def set_vocabulary(self, resolver: Resolver) -> None:
        """Sets the function that returns the bytes of alternatives."""
        self._pointing.resolve = resolver

    def set_lacking(self, lacking: Lacking) -> None:
        """Sets the function that says what the model lacks for a control."""
        self.lacking = self.tokens.lacking = self.read.lacking = lacking

    def show_under(self, parts: Mapping[int, QWidget]) -> None:
        """Puts widgets under the text of turns, by node id, in the shown mode."""
        self._under = dict(parts)
        self._pane().show_under(self._under)

    def bring_into_sight(self, part: QWidget) -> None:
        self._pane().bring_into_sight(part)

    # ---- finding --------------------------------------------------------------------------------------------------

    def look_for(self, words: str, node_id: int | None = None) -> None:
        """Searches for words and marks them; "" ends the search.

        Args:
            words: The words.
            node_id: The turn to begin with; None: the text in sight.
        """
        anchor, turn = self._pane().anchor(), None if node_id is None else self._path.index(node_id)
        self._finder.look_for(words, (anchor.turn, anchor.token) if turn is None else (turn, 0))
        self._emit_found()

    def find_next(self, by: int) -> None:
        """Goes to the next match (+1) or the previous one (-1)."""
        self._finder.step(by)
        self._emit_found()

    def take_earlier_texts(self, texts: Sequence[tuple[int, str, str]]) -> None:
        """Searches the turns before the loaded ones too, given as node id, role and text."""
        self._finder.take_earlier(texts)
        self._emit_found()

    def go_to(self, node_id: int | None) -> None:
        """Marks the beginning of a turn and scrolls to it; None: removes the mark."""
        self._show_match(beginning(self._path.turns, None if node_id is None else self._path.index(node_id)))

    def _find_again(self) -> None:
        if self._finder.words:
            self._finder.refresh()
            self._emit_found()

    def _emit_found(self) -> None:
        for pane in self._panes():
            pane.show_hits(self._finder.found)
        self.found_changed.emit(self._finder.place, self._finder.total)

    def _show_match(self, match: TextMatch | None) -> None:
        self._pane().show_match(match)

    def scroll_to_end(self) -> None:
        """Scrolls to the end, which then stays in sight."""
        self._pane().scroll_to_end()

    def _go_down(self) -> None:
        self._pane().setFocus()  # the button, which has the focus, is hidden next
        self.scroll_to_end()

    def _show_latest(self) -> None:
        """Shows the button that leads to the end if that is far away."""
        pane = self._pane()
        bar = pane.verticalScrollBar()
        self.latest.setVisible(bar.maximum() - bar.value() > pane.viewport().height() * _FAR)
        if not self.latest.isHidden():
            size, (left, width) = self.latest.sizeHint(), pane.column()
            self.latest.setGeometry(
                left + width - size.width(), self._stack.height() - size.height() - 10, size.width(), size.height()
            )
            self.latest.raise_()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Resize:
            self._show_latest()
        return super().eventFilter(watched, event)

    # ---- tokens ---------------------------------------------------------------------------------------------------

    @property
    def pinned(self) -> tuple[int, int] | None:
        """The pinned token: node_id and index."""
        return self.tokens.pinned

    def set_pinned(self, node_id: int, index: int) -> None:
        """Pins a token and scrolls to it without a signal; a token that is not on the path is ignored."""
        if self.record(node_id, index) is not None:
            self.tokens.set_pin(node_id, index)

    def preview(self, node_id: int, index: int, token_id: int) -> None:
        """Shows an alternative in place of a token, and requests the text that would follow it."""
        if self.pinned != (node_id, index):
            self.set_pinned(node_id, index)
        self._pointing.preview(node_id, index, token_id)
        self.preview_wanted.emit(node_id, index, token_id)

    def show_preview(self, node_id: int, index: int, token_id: int, words: Sequence[bytes]) -> None:
        """Shows the text that would follow; ignored if another alternative is previewed by now."""
        self._pointing.show_preview(node_id, index, token_id, words)

    def record(self, node_id: int, index: int) -> TokenRecord | None:
        """The numbers of a token of the path, also of a streamed one; None if there is no such token."""
        return self._path.record(node_id, index)

    def _pane(self) -> TokensPane | ReadPane:
        return self.tokens if self.mode is Mode.TOKENS else self.read

    def _strip_clicked(self, node_id: int, index: int) -> None:
        self.tokens.set_pin(node_id, index)
        self.token_pinned.emit((node_id, index))
        self.token_clicked.emit(node_id, index)

    def _show_strip(self) -> None:
        self._below.setVisible(self.mode is Mode.TOKENS and not self.strip.is_empty)

    def _align(self, left: int, width: int) -> None:
        if self.sender() is not self._pane():
            return  # the hidden pane has another size, as when the window is grabbed for a picture
        self._strip_row.setContentsMargins(left, 0, max(self.width() - left - width, 0), 0)
        self.column_changed.emit(left, width)
