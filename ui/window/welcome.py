"""The first start and empty sessions: hints about tokens and models, and three starters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QFrame, QSizePolicy

from ui.controller import Controller
from ui.port import DownloadView, Offer, TurnStatus, TurnView
from ui.theme.fonts import interface_font
from ui.transcript import Mode
from ui.widgets.controls import allow, button, column_in, row
from ui.widgets.labels import Caption, Label
from ui.window.frame import Frame
from ui.window.presenter import Presenter
from ui.window.transfers import is_typing

TOKENS, MODELS = "tokens", "models"  # hints


class Welcome(QObject):
    """Shows the hints that were not dismissed yet.

    Args:
        controller: Knows the session shown, and the proposed models.
        parts: The parts of the window.
        parent: Owns it.
    """

    def __init__(self, controller: Controller, parts: Frame, parent: QObject) -> None:
        super().__init__(parent)
        self._controller, self._parts = controller, parts
        self._left: frozenset[str] | None = None  # hints not dismissed; None: not read yet
        self._offers: Sequence[Offer] = ()
        self._mode = Mode.TOKENS
        self._claiming = self._claimed = False  # this window, and no other, explains tokens
        controller.session_shown.connect(self._show_session)
        controller.shelf.offered.connect(self._take_offers)
        controller.shelf.downloads_changed.connect(self._show_downloads)
        parts.coach.dismissed.connect(lambda: self._forget(TOKENS))
        parts.transcript.token_pinned.connect(lambda place: parts.coach.dismiss() if place is not None else None)
        parts.first.offers.wanted.connect(lambda offer: controller.shelf.download(offer.wanted))
        parts.first.dismiss_button.clicked.connect(self._dismiss_models)

    def show_mode(self, mode: Mode) -> None:
        """Takes the mode: tokens are explained only in Tokens mode."""
        self._mode = mode
        self._refresh()

    def _show_session(self) -> None:
        if self._left is None:
            self._left = frozenset()
            self._controller.tasks.run(self._ask())
        self._refresh()

    async def _ask(self) -> None:
        self._left = await self._controller.workbench.settings.hints()
        if MODELS in self._left:
            self._controller.shelf.ask()
            data = (await self._controller.workbench.settings.view()).data
            if data is not None:
                self._parts.first.show_folder(data.folder)
        self._refresh()

    def _take_offers(self, offers: Sequence[Offer]) -> None:
        self._offers = offers
        self._show_downloads(self._controller.shelf.downloads)

    def _show_downloads(self, downloads: Sequence[DownloadView]) -> None:
        self._parts.first.show_offers(self._offers, [view.repository for view in downloads])
        self._refresh()

    def _refresh(self) -> None:
        left, shown = self._left or frozenset(), self._controller.shown
        tokens = TOKENS in left and shown is not None and bool(shown.view.turns) and self._mode is Mode.TOKENS
        if tokens and not self._claimed:
            tokens = False
            if not self._claiming:
                self._claiming = True
                self._controller.tasks.run(self._claim_tokens())
        self._parts.show_card(self._parts.coach, tokens)
        sample = shown is not None and shown.view.is_sample
        self._parts.show_card(self._parts.first, MODELS in left and sample and bool(self._parts.first.offers.rows))

    async def _claim_tokens(self) -> None:
        self._claimed = await self._controller.workbench.settings.dismiss_hint(TOKENS)
        if self._claimed:
            self._refresh()
        else:
            self._forget(TOKENS)

    def _forget(self, hint: str) -> None:
        self._left = (self._left or frozenset()) - {hint}
        self._refresh()

    def _dismiss_models(self) -> None:
        self._forget(MODELS)
        self._controller.tasks.run(self._controller.workbench.settings.dismiss_hint(MODELS))


ENDINGS = 8


class StartersCard(QFrame):
    """Three buttons over the composer, each with an explanation."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.setAccessibleName(self.tr("Three ways to begin"))
        self.own_text = button(self.tr("Colour my own text"), "link")
        self.endings = button(self.tr("Eight endings of one sentence"), "link")
        self.unsure = button(self.tr("Where was it unsure?"), "link")
        column = column_in(self, Caption(self.tr("Three ways to begin")), spacing=1, margins=(14, 10, 14, 10))
        column.addSpacing(4)
        for part, words in (
            (self.own_text, self.tr("type or paste it below: what surprises the model turns warm")),
            (self.endings, self.tr("how the model goes on, eight times side by side")),
            (self.unsure, self.tr("an answer, and the token at which it hesitated most")),
        ):
            said = Label(words, "soft", interface_font(12), wraps=True)
            said.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
            column.addLayout(row(part, 1))
            column.addWidget(said)
            column.addSpacing(4)
        self.hide()

    def show_wait(self, reason: str, lacking: Callable[[str], str]) -> None:
        """Disables buttons, with the reason why the model cannot be asked or what it lacks; "" for none."""
        allow(self.own_text, True, lacking("draft"))
        allow(self.endings, True, reason or lacking("branch"))
        allow(self.unsure, True, reason)


class Starters(QObject):
    """Shows the card of starters in empty sessions, and carries them out.

    Args:
        controller: Asks the model.
        parts: The parts of the window.
        presenter: Switches to Tokens mode.
        find_columns: Starts several continuations at a place of the last answer.
    """

    def __init__(
        self, controller: Controller, parts: Frame, presenter: Presenter, find_columns: Callable[[int, int], None]
    ) -> None:
        super().__init__(parts)
        self._controller, self._parts, self._presenter = controller, parts, presenter
        self._find_columns = find_columns
        self.card = StartersCard()
        self._then: tuple[int, Callable[[], None]] | None = None  # session, and what to do after its first answer
        parts.put_over_composer(self.card)
        controller.session_shown.connect(lambda _view: self._refresh())
        controller.activity_changed.connect(self._refresh)
        controller.status_changed.connect(lambda _status: self._refresh())
        self.card.own_text.clicked.connect(self._colour_own)
        self.card.endings.clicked.connect(
            lambda: self._ask(self.tr("Finish the sentence: The old lighthouse keeper opened the door and"), self._find_endings)
        )
        self.card.unsure.clicked.connect(
            lambda: self._ask(self.tr("Tell me about a city by the sea in three sentences."), self._show_unsure)
        )

    def _refresh(self) -> None:
        shown, running = self._controller.shown, self._controller.running
        said = shown is not None and any(turn.role != "system" for turn in shown.view.turns)
        self._parts.show_card(self.card, shown is not None and not said and not running)
        self.card.show_wait(self._parts.composer.wait, self._parts.transcript.lacking)
        if self._then is not None and shown is not None and not running:
            session_id, then = self._then
            answer = shown.last_answer
            if shown.session_id != session_id or (answer is not None and not _reached_its_end(answer)):
                self._then = None  # another session is shown, or the answer was stopped
            elif answer is not None:
                self._then = None
                then()

    def _colour_own(self) -> None:
        self._presenter.set_mode(Mode.TOKENS)
        self._parts.composer.field.set_hint(self.tr("Type or paste your own text…"))
        self._parts.composer.setFocus()

    def _ask(self, text: str, then: Callable[[], None]) -> None:
        shown = self._controller.shown
        if shown is not None:
            self._presenter.set_mode(Mode.TOKENS)
            self._then = shown.session_id, then
            self._controller.answers.send(text)

    def _find_endings(self) -> None:
        answer = self._controller.shown.last_answer if self._controller.shown is not None else None
        if answer is not None:
            made = next((i for i, origin in enumerate(answer.run.origin.tolist()) if origin != 0), 0)
            self._find_columns(answer.node_id, made)

    def _show_unsure(self) -> None:
        self._parts.transcript.tokens.most_uncertain()
        if not is_typing():
            self._parts.transcript.tokens.card_wanted.emit()


def _reached_its_end(answer: TurnView) -> bool:
    """Whether an answer ended by itself, or at the length limit."""
    if answer.status is TurnStatus.PARTIAL and len(answer.run):
        return answer.run.record(len(answer.run) - 1).finish_reason == "length"
    return answer.status is TurnStatus.COMPLETE
