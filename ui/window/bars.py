"""Bars over the transcript: a link's address, the search in the path, and the explanation of Tokens mode."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QSignalBlocker, Qt, QUrl, Signal
from PySide6.QtGui import QFont, QKeyEvent
from PySide6.QtWidgets import QFrame, QSizePolicy

from ui.theme.fonts import interface_font
from ui.widgets.controls import button, column_in, fill, row, row_in, words
from ui.widgets.fields import LineEdit
from ui.widgets.labels import ElidedLabel, IconButton, Label, StepButton, announce, native, plain_tooltip
from ui.widgets.visible import place_of, safe_url, spelled

MOST_PLACE = 40  # characters shown of a host, in bold


class LinkBar(QFrame):
    """A non-modal line above the composer that asks what to do with a link."""

    open_wanted = Signal(QUrl)
    copy_wanted = Signal(str)

    def __init__(self) -> None:
        super().__init__()
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
        self.dismiss_button.clicked.connect(self.hide)
        row = row_in(self, self.place, spacing=12, margins=(12, 6, 6, 6))
        fill(row, (self.address, 1), self.open_button, self.copy_button, self.dismiss_button)
        self.hide()

    def ask(self, address: str) -> None:
        """Shows an address; one that cannot be opened can still be copied."""
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
        announce(self, self.accessibleName())

    def _open(self) -> None:
        self.hide()
        self.open_wanted.emit(self._url)

    def _copy(self) -> None:
        self.hide()
        self.copy_wanted.emit(self._address)


def _cut(place: str) -> str:
    """Elides the beginning of a long host: its end names the owner."""
    return place if len(place) <= MOST_PLACE else f"…{place[1 - MOST_PLACE :]}"


class FindBar(QFrame):
    """The search field and the number of the match shown; hidden until `open`."""

    wanted = Signal(str)  # the search words; "" when the bar closes
    step_wanted = Signal(int)  # to the next (+1) or the previous (-1) match
    closed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("find")
        self.field = LineEdit()
        self.field.setObjectName("search")
        self.field.setPlaceholderText(self.tr("Find in this session"))
        self.field.setAccessibleName(self.tr("Find in this session"))
        self.field.setFont(interface_font())
        self.field.textChanged.connect(self.wanted)
        self.field.installEventFilter(self)
        self.count = Label("", "soft", interface_font(11.5))
        self.previous = self._button("‹", self.tr("Previous place"), -1)
        self.next = self._button("›", self.tr("Next place"), +1)
        close = IconButton("x", self.tr("Close"))
        close.setToolTip(plain_tooltip(self.tr("Close ({0})").format(native("Esc"))))
        close.clicked.connect(self.dismiss)
        row_in(self, (self.field, 1), self.count, self.previous, self.next, close, spacing=8, margins=(12, 6, 12, 6))
        self.show_place(None, 0)
        self.hide()

    def open(self) -> None:
        """Shows the bar with the last search words selected."""
        self.show()
        self.field.setFocus()
        self.field.selectAll()
        self.wanted.emit(self.field.text())

    def show_words(self, words: str) -> None:
        """Shows the bar with given search words; does not take the focus."""
        with QSignalBlocker(self.field):
            self.field.setText(words)
        self.show()

    def step(self, by: int) -> None:
        """Goes to the next or previous match; opens the bar if it is hidden."""
        if self.isHidden():
            self.open()
        else:
            self.step_wanted.emit(by)

    def show_place(self, place: int | None, total: int) -> None:
        """Shows the index (from 0) of the match shown, or None, and the number of matches."""
        words = ""
        if self.field.text():
            words = self.tr("{0:,} of {1:,}").format((place or 0) + 1, total) if total else self.tr("not found")
        self.count.setText(words)
        self.count.setAccessibleName(words)
        self.previous.setEnabled(total > 0)
        self.next.setEnabled(total > 0)

    def dismiss(self) -> None:
        """Hides the bar and ends the search."""
        if not self.isHidden():
            self.hide()
            self.wanted.emit("")
            self.closed.emit()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if not isinstance(event, QKeyEvent) or event.type() is not QEvent.Type.KeyPress:
            return False
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.step_wanted.emit(-1 if event.modifiers() & Qt.KeyboardModifier.ShiftModifier else +1)
            return True
        return super().eventFilter(watched, event)

    def _button(self, sign: str, words: str, by: int) -> StepButton:
        button = StepButton(sign, words)
        button.clicked.connect(lambda: self.step_wanted.emit(by))
        return button


class CoachMark(QFrame):
    """Explains Tokens mode, over the composer, so that no token is covered."""

    dismissed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        title = Label(self.tr("Warm where it was not sure"), "", interface_font(13, QFont.Weight.DemiBold))
        said = self.tr(
            "Every token is coloured by how surprising it was to the model. Click one to see what else was likely, "
            "and choose it: the answer continues from there. Read shows formatted text."
        )
        self.done_button = button(self.tr("Got it"), "link")
        self.done_button.clicked.connect(self.dismiss)
        self.setAccessibleName(f"{title.text()}. {said}")
        column_in(self, row(title, 1, self.done_button), words(said), spacing=4, margins=(14, 8, 10, 10))
        self.hide()

    def dismiss(self) -> None:
        if not self.isHidden():
            self.hide()
            self.dismissed.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Takes Escape only with the focus, for the user did not open it."""
        if event.key() == Qt.Key.Key_Escape:
            self.dismiss()
        else:
            super().keyPressEvent(event)
