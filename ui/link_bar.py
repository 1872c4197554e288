"""The line that asks what to do with a link that was clicked in a conversation."""

from __future__ import annotations

from PySide6.QtCore import QUrl, Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QWidget

from ui.links import place_of, safe_url, spelled
from ui.parts import button
from ui.theme.fonts import interface_font
from ui.widgets import ElidedLabel, IconButton, Label

MOST_PLACE = 40  # characters of a host that are shown in bold


class LinkBar(QFrame):
    """A line above the composer that asks what to do with a link. Nothing else waits for it."""

    open_wanted = Signal(QUrl)
    copy_wanted = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "notice")
        self._url = QUrl()
        self._address = ""
        self.place = Label(font=interface_font(12.5, QFont.Weight.DemiBold))
        self.address = ElidedLabel("", "soft", interface_font(12.5))
        self.address.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.open_button = button(self.tr("Open in browser"), "link")
        self.open_button.clicked.connect(self._open)
        self.copy_button = button(self.tr("Copy"), "link")
        self.copy_button.clicked.connect(self._copy)
        self.dismiss_button = IconButton("x", self.tr("Dismiss"))
        self.dismiss_button.clicked.connect(self.dismiss)
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 6, 6, 6)
        row.setSpacing(12)
        row.addWidget(self.place)
        row.addWidget(self.address, 1)
        row.addWidget(self.open_button)
        row.addWidget(self.copy_button)
        row.addWidget(self.dismiss_button)
        self.hide()

    def ask(self, address: str) -> None:
        """Shows an address and what can be done with it; one that cannot be opened can still be copied."""
        url = safe_url(address)
        self._url = url or QUrl()
        shown = spelled(url) if url is not None else address
        self._address = shown
        self.place.setText(_cut(place_of(url)) if url is not None else self.tr("not a web address"))
        self.address.setText(shown)
        self.open_button.setText(self.tr("Write mail") if self._url.scheme() == "mailto" else self.tr("Open in browser"))
        self.open_button.setVisible(url is not None)
        self.setAccessibleName(self.tr("Link to {0}").format(shown))
        self.show()

    def dismiss(self) -> None:
        """Nothing is asked any more."""
        self.hide()

    def _open(self) -> None:
        self.hide()
        self.open_wanted.emit(self._url)

    def _copy(self) -> None:
        self.hide()
        self.copy_wanted.emit(self._address)


def _cut(place: str) -> str:
    """The end of a long host counts: it says whose it is."""
    return place if len(place) <= MOST_PLACE else f"…{place[1 - MOST_PLACE :]}"
