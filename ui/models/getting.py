"""The section for new models: by name or search on the hub, or from the proposals."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from ui.controller.models import ShelfController
from ui.models.offers import Finds, Offers
from ui.models.plan_card import PlanCard
from ui.models.token_row import TokenRow
from ui.port import FitView, HubFind, ModelPlan, Offer
from ui.widgets.controls import button, column_in, line_edit, row, words
from ui.widgets.labels import Caption, set_kind


class GetSection(QWidget):
    """A field for names and search words, the results, and the proposals.

    Args:
        controller: Asks the hub, only for a search or a look-up.
    """

    seen_wanted = Signal(object)  # a widget to scroll to
    changed = Signal()  # the rows are other ones

    def __init__(self, controller: ShelfController) -> None:
        super().__init__()
        self._controller = controller
        self._busy: tuple[str, ...] = ()  # repositories of downloads
        hint = self.tr("org/name, org/name@revision or search words")
        self.field = line_edit(self.tr("Repository name or search words"), hint, 13)
        self.look_button, self.search_button = button(self.tr("Look up")), button(self.tr("Search"))
        self.finds = Finds()
        self.looking = words()
        self.token = TokenRow()
        self.card = PlanCard()
        self.offers = Offers()
        hint = self.tr("Find a model on Hugging Face by name or by search words. Nothing is sent until you press a button.")
        column = column_in(
            self,
            words(hint),
            row(self.field, self.look_button, self.search_button),
            self.looking,
            self.card,
            self.finds,
            self.token,
            spacing=8,
        )
        column.addSpacing(4)
        column.addWidget(Caption(self.tr("Chat models that work here")))
        column.addWidget(self.offers)
        self.looking.hide()
        self._connect()

    @property
    def buttons(self) -> tuple[QWidget, ...]:
        first = self.field, self.look_button, self.search_button, *self.card.buttons
        return *first, *self.finds.buttons, *self.token.buttons, *self.offers.buttons

    def show_busy(self, repositories: Sequence[str]) -> None:
        """Marks the proposals whose download exists already."""
        self._busy = tuple(repositories)
        self.offers.show_offers([each.offer for each in self.offers.rows], self._busy)

    def _show_offers(self, offers: Sequence[Offer]) -> None:
        self.offers.show_offers(offers, self._busy)
        self.changed.emit()

    def _show_plan(self, plan: ModelPlan) -> None:
        self.looking.hide()
        self.look_button.setEnabled(True)
        self.card.show_plan(plan)
        self.seen_wanted.emit(self.card)

    def _show_fit(self, plan: ModelPlan, fit: FitView | None) -> None:
        if self.card.plan is plan:
            self.card.show_fit(fit)

    def _show_found(self, words: str, found: Sequence[HubFind]) -> None:
        self.search_button.setEnabled(True)
        self.looking.hide()
        if not found:
            self._say(self.tr("No results on Hugging Face for {0}").format(words), "soft")
        self.finds.show_finds(found)
        self.changed.emit()

    def _refuse(self, why: str) -> None:
        self.look_button.setEnabled(True)
        self.search_button.setEnabled(True)
        self._say(why, "warm")

    def _look_up(self) -> None:
        wanted = self.field.text().strip()
        if not wanted:
            self.field.setFocus()
            return
        self.card.hide()
        self.look_button.setEnabled(False)
        self._say(self.tr("Looking up {0} on Hugging Face…").format(wanted), "soft")
        self._controller.plan(wanted)

    def _search(self) -> None:
        words = self.field.text().strip()
        if not words:
            self.field.setFocus()
            return
        self.card.hide()
        self.finds.show_finds(())
        self.search_button.setEnabled(False)
        self._say(self.tr("Searching Hugging Face for {0}…").format(words), "soft")
        self._controller.search(words)

    def _look_at(self, source: str) -> None:
        """Looks up a search result or a proposal."""
        self.field.setText(source)
        self._look_up()

    def _forget(self, _text: str) -> None:
        """Cancels questions to the hub when other text is typed."""
        if not self.look_button.isEnabled() or not self.search_button.isEnabled():
            self._controller.drop_questions()
            self.look_button.setEnabled(True)
            self.search_button.setEnabled(True)
        self.looking.hide()

    def _get(self, offer: Offer) -> None:
        if offer.gated or not offer.fit.fits:  # the plan says what to know first
            self._look_at(offer.wanted)
        else:
            self._controller.download(offer.wanted)

    def _say(self, text: str, kind: str) -> None:
        set_kind(self.looking, kind)
        self.looking.setText(text)
        self.looking.show()

    def _connect(self) -> None:
        controller = self._controller
        controller.offered.connect(self._show_offers)
        controller.planned.connect(self._show_plan)
        controller.plan_refused.connect(self._refuse)
        controller.fitted.connect(self._show_fit)
        controller.found.connect(self._show_found)
        controller.search_refused.connect(self._refuse)
        controller.token.connect(self.token.show_token)
        controller.token_refused.connect(self.token.show_refused)
        self.token.asked.connect(controller.ask_token)
        self.token.keep_wanted.connect(controller.keep_token)
        self.token.forget_wanted.connect(controller.forget_token)
        self.look_button.clicked.connect(self._look_up)
        self.search_button.clicked.connect(self._search)
        self.finds.wanted.connect(self._look_at)
        self.field.returnPressed.connect(self._look_up)
        self.field.textEdited.connect(self._forget)
        self.card.download_wanted.connect(controller.download)
        self.card.open_wanted.connect(controller.open)
        self.card.context_wanted.connect(controller.fit)
        self.card.own_wanted.connect(controller.remember_context)
        controller.context_kept.connect(self.card.show_own)
        self.offers.wanted.connect(self._get)
