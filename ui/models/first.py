"""After the sample session, at the first start: a few models that fit this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QVBoxLayout

from ui.models.offers import Offers
from ui.port import Offer
from ui.widgets.controls import button, row
from ui.widgets.labels import Caption, IconButton


class FirstModels(QFrame):
    """A card over the composer; hidden until it is wanted."""

    wanted = Signal(object)  # Offer
    more_wanted = Signal()
    dismissed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.setAccessibleName(self.tr("Models that fit this machine"))
        self.offers = Offers()
        self.offers.wanted.connect(self.wanted)
        self.more_button = button(self.tr("More models…"), "link")
        self.more_button.clicked.connect(self.more_wanted)
        self.dismiss_button = IconButton("x", self.tr("Not now"))
        self.dismiss_button.clicked.connect(self.dismissed)
        column = QVBoxLayout(self)
        column.setContentsMargins(14, 8, 10, 10)
        column.setSpacing(6)
        column.addLayout(row(Caption(self.tr("Models that fit this machine")), 1, self.more_button, self.dismiss_button))
        column.addWidget(self.offers)
        self.hide()

    def show_offers(self, offers: Sequence[Offer], busy: Sequence[str]) -> None:
        """Those that suit this machine; of the `busy` repositories a download stands already."""
        self.offers.show_offers([replace(offer, best=False) for offer in offers if offer.best], busy)  # the head says it
