"""The first start: what Tokens mode is, in one window, once; and a few models that fit, until they are dismissed."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QObject

from ui.controller import Controller
from ui.port import Download, Offer, SessionView
from ui.transcript import Mode
from ui.window.frame import Frame

TOKENS, MODELS = "tokens", "models"  # hints


class Welcome(QObject):
    """Shows the hints that are left, each where it belongs.

    Args:
        controller: Knows what is shown, and what is proposed.
        parts: Of the window.
        parent: Owns it.
    """

    def __init__(self, controller: Controller, parts: Frame, parent: QObject) -> None:
        super().__init__(parent)
        self._controller, self._parts = controller, parts
        self._left: frozenset[str] | None = None  # None: not asked for yet
        self._offers: Sequence[Offer] = ()
        self._mode = Mode.TOKENS
        self._claiming = self._claimed = False  # tokens are explained here, and in no other window
        controller.session_shown.connect(self._show_session)
        controller.shelf.offered.connect(self._take_offers)
        controller.shelf.downloads_changed.connect(self._show_downloads)
        parts.coach.dismissed.connect(lambda: self._forget(TOKENS))
        parts.transcript.token_pinned.connect(lambda place: parts.coach.dismiss() if place is not None else None)
        parts.first.wanted.connect(lambda offer: controller.shelf.download(offer.wanted))
        parts.first.dismissed.connect(self._dismiss_models)

    def show_mode(self, mode: Mode) -> None:
        """Tokens are explained where they are seen."""
        self._mode = mode
        self._refresh()

    def _show_session(self, view: SessionView) -> None:
        if self._left is None:
            self._left = frozenset()
            self._controller.tasks.run(self._ask())
        del view
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

    def _show_downloads(self, downloads: Sequence[Download]) -> None:
        self._parts.first.show_offers(self._offers, [view.repository for view in downloads])
        self._refresh()

    def _refresh(self) -> None:
        left, shown = self._left or frozenset(), self._controller.shown
        tokens = TOKENS in left and shown is not None and bool(shown.view.turns) and self._mode is Mode.TOKENS
        if tokens and not self._claimed:
            tokens = False
            self._claim()
        self._parts.coach.setVisible(tokens)
        sample = shown is not None and shown.view.is_sample
        self._parts.first.setVisible(MODELS in left and sample and bool(self._parts.first.offers.rows))

    def _claim(self) -> None:
        if not self._claiming:
            self._claiming = True
            self._controller.tasks.run(self._claim_tokens())

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
        self._controller.tasks.run(self._keep_dismissed())

    async def _keep_dismissed(self) -> None:
        await self._controller.workbench.settings.dismiss_hint(MODELS)
