"""Models to download: proposals, and search results of the hub."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace
from PySide6.QtCore import Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QFrame, QPushButton, QWidget

from ui.port import HubFind, Offer
from ui.theme.fonts import interface_font
from ui.widgets.controls import button, column_in, column_of, drop, restyle, row, row_in, words
from ui.widgets.labels import Caption, ElidedLabel, IconButton, Label
from ui.widgets.numbers import count, size
from ui.widgets.visible import one_line


class Finds(QWidget):
    """The search results, a row each; hidden while there are none."""

    wanted = Signal(str)  # org/name

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[FindRow] = []
        self._column = column_in(self, Caption(self.tr("Search results")), spacing=9, margins=(0, 4, 0, 4))
        self.hide()

    @property
    def buttons(self) -> tuple[QPushButton, ...]:
        return tuple(each.look_button for each in self.rows)

    def show_finds(self, finds: Sequence[HubFind]) -> None:
        """Replaces the results."""
        for old in self.rows:
            drop(self._column, old)
        self.rows = [FindRow(find) for find in finds]
        for made in self.rows:
            made.wanted.connect(self.wanted)
            self._column.addWidget(made)
        self.setVisible(bool(self.rows))


class FindRow(QWidget):
    """One search result."""

    wanted = Signal(str)  # org/name

    def __init__(self, find: HubFind) -> None:
        super().__init__()
        name = ElidedLabel(find.source, "", interface_font(13, QFont.Weight.Medium))
        consent = self.tr("accept its terms on its page first") if find.gated else ""
        self.facts = words(one_line(" · ".join(part for part in (find.facts, consent) if part)), "soft", px=11.5)
        self.problem = words(one_line(find.problem), "warm", px=11.5)
        self.problem.setVisible(bool(find.problem))
        self.look_button = button(self.tr("Look up"))
        self.look_button.setAccessibleName(self.tr("Look up {0}").format(find.source))
        self.look_button.clicked.connect(lambda: self.wanted.emit(find.source))
        left = column_of(name, self.facts, self.problem, spacing=1)
        row_in(self, (left, 1), self.look_button, spacing=12)


class Offers(QWidget):
    """The proposals, a row each."""

    wanted = Signal(object)  # Offer

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[OfferRow] = []
        self._column = column_in(self, spacing=9)

    @property
    def buttons(self) -> tuple[QPushButton, ...]:
        return tuple(each.get_button for each in self.rows)

    def show_offers(self, offers: Sequence[Offer], busy: Sequence[str] = ()) -> None:
        """Shows the offers that are not installed; `busy` are the repositories whose download exists already."""
        offers = [offer for offer in offers if not offer.here]
        if [each.offer.wanted for each in self.rows] != [offer.wanted for offer in offers]:
            for old in self.rows:
                drop(self._column, old)
            self.rows = [OfferRow(offer) for offer in offers]
            for made in self.rows:
                made.wanted.connect(self.wanted)
                self._column.addWidget(made)
        for each, offer in zip(self.rows, offers, strict=True):
            each.show_offer(offer, busy=offer.wanted in busy)


class OfferRow(QWidget):
    """One proposal."""

    wanted = Signal(object)  # Offer

    def __init__(self, offer: Offer) -> None:
        super().__init__()
        self.offer = offer
        self.name = ElidedLabel("", "", interface_font(13, QFont.Weight.Medium))
        self.good_for = ElidedLabel("", "soft", interface_font(11.5))
        self.facts = words(px=11.5)
        self.state = Label("", "accent", interface_font(11.5))
        self.get_button = button(self.tr("Get"))
        self.get_button.clicked.connect(lambda: self.wanted.emit(self.offer))
        left = column_of(row(self.name, self.state, (self.good_for, 1)), self.facts, spacing=1)
        row_in(self, (left, 1), self.get_button, spacing=12)

    def show_offer(self, offer: Offer, *, busy: bool) -> None:
        self.offer = offer
        self.name.setText(offer.name)
        self.good_for.setText(offer.good_for)
        self.facts.setText(self._facts(offer))
        self.state.setText(self.tr("suits this machine") if offer.best else "")
        self.state.setVisible(bool(self.state.text()))
        self.get_button.setText(self.tr("fetching") if busy else self.tr("Get"))
        self.get_button.setEnabled(not busy)
        suits = offer.fit.fits or bool(offer.fit.longest)
        restyle(self.get_button, "quiet" if suits else "plain")
        self.get_button.setAccessibleName(self.tr("Get {0}, {1}").format(offer.name, size(offer.size)))

    def _facts(self, offer: Offer) -> str:
        fit = offer.fit
        if fit.fits:
            fits = self.tr("fits with {0} tokens").format(count(fit.context))
        elif fit.longest:
            fits = self.tr("fits with {0} tokens at most").format(count(fit.longest))
        else:
            fits = self.tr("does not fit: needs about {0}, this machine has {1}").format(size(fit.total), size(fit.memory))
        consent = self.tr("accept its terms on its page first") if offer.gated else ""
        parameters = self.tr("{0} parameters").format(parameter_words(offer.parameters))
        return " · ".join(part for part in (parameters, size(offer.size), offer.licence, fits, consent) if part)


def parameter_words(parameters: int) -> str:
    """A number of parameters: 135 M, 7.2 B."""
    return f"{parameters / 1e9:.1f} B" if parameters >= 999_500_000 else f"{parameters / 1e6:.0f} M"


class FirstModels(QFrame):
    """A card over the composer with models that fit this machine; hidden until it is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.setAccessibleName(self.tr("Models that fit this machine"))
        self.offers = Offers()
        self.more_button = button(self.tr("More models…"), "link")
        self.import_button = button(self.tr("Import a file…"), "link")
        self.dismiss_button = IconButton("x", self.tr("Not now"))
        self.place = words(px=11.5)
        self.place.hide()
        caption = Caption(self.tr("Models that fit this machine"))
        head = row(caption, 1, self.import_button, self.more_button, self.dismiss_button)
        column_in(self, head, self.offers, self.place, spacing=6, margins=(14, 8, 10, 10))
        self.hide()

    def show_offers(self, offers: Sequence[Offer], busy: Sequence[str]) -> None:
        """Shows the offers that suit this machine; `busy` are the repositories whose download exists already."""
        self.offers.show_offers([replace(offer, best=False) for offer in offers if offer.best], busy)  # the caption says it
        for first, second in pairwise((self.dismiss_button, *self.offers.buttons)):
            QWidget.setTabOrder(first, second)

    def show_folder(self, folder: str) -> None:
        self.place.setText(self.tr("Your sessions are kept on this machine, in {0}").format(folder))
        self.place.show()
