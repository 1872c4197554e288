"""Where the next message is written: a text field that grows, what it costs, and Send or Stop."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QMimeData, QObject, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QFocusEvent, QFont, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPlainTextEdit, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from ui.port import Composition
from ui.theme.fonts import interface_font
from ui.widgets import ElidedLabel, Label, Notice

COMPOSE_DELAY_MS = 200
MOST_LINES = 10


class Composer(QWidget):
    """The message field with its notice line. A draft is never lost: only `clear_sent` empties the field."""

    sent = Signal(str, object)  # the text, and the node id of the user's turn it is another version of, or None
    stopped = Signal()
    drafted = Signal(str)  # the draft, a moment after the last key

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.notice = Notice()
        self.version = Notice("undo")  # said while the draft is another version of an earlier turn
        self.version.dismissed.connect(self._drop_version)
        self._replaces: int | None = None
        self.field = DraftField()
        self.field.submitted.connect(self._submit)
        self.field.textChanged.connect(self._edited)
        self.cost = Label("", "faint", interface_font(11.5))
        self.context = ElidedLabel("", "faint", interface_font(11.5))
        self.send_button = QPushButton(self.tr("Send"))
        self.send_button.setObjectName("send")
        self.send_button.setFont(interface_font(12.5, QFont.Weight.DemiBold))
        self.send_button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.send_button.clicked.connect(self._press)
        self._running = False

        self._box = QFrame()
        self._box.setObjectName("composer")
        self._fill_box()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        column.addWidget(self.notice)
        column.addWidget(self.version)
        column.addWidget(self._box)
        self.field.installEventFilter(self)
        self.setFocusProxy(self.field)

        self._delay = QTimer(self, singleShot=True, interval=COMPOSE_DELAY_MS)
        self._delay.timeout.connect(lambda: self.drafted.emit(self.draft))
        self._refresh()

    @property
    def draft(self) -> str:
        """What stands in the field."""
        return self.field.toPlainText()

    def clear_sent(self, text: str) -> None:
        """The message `text` is saved: take it out of the field, unless something else has been written since."""
        self._drop_version()
        if self.draft == text:
            self.field.clear()

    def edit(self, node_id: int, old: str, text: str) -> None:
        """Begins another version of the user's turn `node_id`, which says `old`; nothing is sent yet.

        What was being written is put behind it rather than lost.
        """
        kept = self.draft if self._replaces is None else ""
        self._replaces = node_id
        short = " ".join(old.split())
        self.version.say(self.tr("Another version of “{0}”").format(short if len(short) <= 48 else short[:47] + "…"))
        self.field.setPlainText(f"{text}\n\n{kept}" if kept.strip() else text)
        cursor = self.field.textCursor()
        cursor.setPosition(len(text.encode("utf-16-le")) // 2)
        self.field.setTextCursor(cursor)
        self.field.setFocus()

    def set_running(self, running: bool) -> None:  # a state, not an option
        """Send turns into Stop while an answer is under way."""
        self._running = running
        self._refresh()

    def set_recording(self, recording: bool) -> None:  # a state, not an option
        """What is shown is the recorded sample: says where a message goes."""
        hint = self.tr("A recording: look around, click any token. A message goes into a copy.")
        self.field.setPlaceholderText(hint if recording else self.tr("Message…"))

    def show_cost(self, composition: Composition | None) -> None:
        """Tokens of the draft and of the context with it."""
        self.cost.setText("" if composition is None else self._cost_words(composition))
        self.cost.setVisible(bool(self.cost.text()))
        self.context.setText("" if composition is None else self._context_words(composition))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self.field and event.type() in (QEvent.Type.FocusIn, QEvent.Type.FocusOut):
            assert isinstance(event, QFocusEvent)
            self._box.setProperty("focused", "true" if event.gotFocus() else "false")
            self._box.style().polish(self._box)
        return super().eventFilter(watched, event)

    def _fill_box(self) -> None:
        column = QVBoxLayout(self._box)
        column.setContentsMargins(13, 11, 13, 11)
        column.setSpacing(10)
        column.addWidget(self.field)
        row = QHBoxLayout()
        row.setSpacing(14)
        row.addWidget(self.cost)
        row.addWidget(self.context, 1)
        row.addWidget(self.send_button)
        column.addLayout(row)

    def _cost_words(self, cost: Composition) -> str:
        if not cost.tokens:
            return ""
        tokens = self.tr("1 token") if cost.tokens == 1 else self.tr("{0:,} tokens").format(cost.tokens)
        return tokens if cost.bits is None else self.tr("{0}, {1:.1f} bits").format(tokens, cost.bits)

    def _context_words(self, cost: Composition) -> str:
        if cost.context_length is None:
            return ""
        context = self.tr("context {0:,} of {1:,}").format(cost.context_used, cost.context_length)
        over = cost.context_used - cost.context_length
        return context if over <= 0 else self.tr("{0}: {1:,} too many").format(context, over)

    def _edited(self) -> None:
        self._refresh()
        self._delay.start()

    def _submit(self) -> None:
        if self.draft.strip() and not self._running:
            self.sent.emit(self.draft, self._replaces)

    def _press(self) -> None:
        if self._running:
            self.stopped.emit()
        else:
            self._submit()

    def _drop_version(self) -> None:
        self._replaces = None
        self.version.clear()

    def _refresh(self) -> None:
        self.send_button.setText(self.tr("Stop") if self._running else self.tr("Send"))
        self.send_button.setAccessibleName(self.tr("Stop the answer") if self._running else self.tr("Send the message"))
        self.send_button.setEnabled(self._running or bool(self.draft.strip()))


class DraftField(QPlainTextEdit):
    """Plain text only, as tall as its lines; Enter submits, Shift-Enter breaks the line."""

    submitted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFont(interface_font(15))
        self.setPlaceholderText(self.tr("Message…"))
        self.setAccessibleName(self.tr("Message"))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setTabChangesFocus(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.document().setDocumentMargin(0)
        self.document().documentLayout().documentSizeChanged.connect(self._grow)
        self._grow()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.submitted.emit()
        elif enter:
            self.textCursor().insertBlock()  # Qt's own line break is U+2028, which no model expects
            self.ensureCursorVisible()
        else:
            super().keyPressEvent(event)

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        return source.hasText()

    def insertFromMimeData(self, source: QMimeData) -> None:
        self.insertPlainText(source.text())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._grow()

    def sizeHint(self) -> QSize:
        return QSize(super().sizeHint().width(), self.minimumHeight())

    def _grow(self) -> None:
        lines = max(1, int(self.document().size().height()))  # wrapped lines, for this kind of document
        self.setVerticalScrollBarPolicy(
            Qt.ScrollBarPolicy.ScrollBarAsNeeded if lines > MOST_LINES else Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        )
        self.setFixedHeight(min(lines, MOST_LINES) * self.fontMetrics().lineSpacing() + 4)
