"""Bars of the models page: questions, choices, progress, and memory."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from ui.models.token_row import InlinePanel
from ui.port import FitView, GgufPlan, translate
from ui.theme.fonts import interface_font, scaled
from ui.theme.palette import Palette
from ui.theme.scheme import current_theme
from ui.theme.text_size import fix_height
from ui.widgets.controls import Choice, button, column_in, row, row_in, words
from ui.widgets.labels import ElidedLabel
from ui.widgets.numbers import size
from ui.widgets.visible import one_line


class AskBar(InlinePanel):
    """Asks for confirmation; hidden otherwise. The focus is on the button that changes nothing, then back on `home`.

    Args:
        home: The button that opens it.
        leave: The words of the button that changes nothing.
    """

    agreed = Signal()

    def __init__(self, home: QWidget, leave: str) -> None:
        super().__init__(home, "undo")
        self._words = words("", "")
        self.do_button = button("", "link")
        self.keep_button = button(leave, "plain")
        self.do_button.clicked.connect(self._agree)
        self.keep_button.clicked.connect(self.leave)
        row_in(self, (self._words, 1), self.do_button, self.keep_button, spacing=14, margins=(10, 5, 10, 5))

    @property
    def words(self) -> str:
        """The question; "" while hidden."""
        return "" if self.isHidden() else self._words.text()

    def ask(self, question: str, action: str) -> None:
        self._words.setText(question)
        self.setAccessibleName(question)
        self.do_button.setText(action)
        self.open_at(self.keep_button)

    def _agree(self) -> None:
        self.leave()
        self.agreed.emit()


class ChoiceBar(InlinePanel):
    """Asks for one of a few choices; hidden otherwise. The focus then goes back to `home`.

    Args:
        home: The button that opens it.
        name: The accessible name of the choice.
        labels: The words of the choices.
        action: The words of the button that confirms.
    """

    agreed = Signal(int)  # the index of the choice

    def __init__(self, home: QWidget, name: str, labels: Sequence[str], action: str) -> None:
        super().__init__(home, "undo")
        self.question = words("", "")
        self.choice = Choice(name, labels)
        self.do_button = button(action, "link")
        self.keep_button = button(self.tr("Not now"), "plain")
        self.do_button.clicked.connect(self._agree)
        self.keep_button.clicked.connect(self.leave)
        column_in(
            self,
            self.question,
            row(self.choice, self.do_button, self.keep_button, 1, spacing=14),
            spacing=6,
            margins=(10, 6, 10, 6),
        )

    @property
    def buttons(self) -> tuple[QWidget, ...]:
        return *self.choice.buttons, self.do_button, self.keep_button

    def ask_about(self, question: str, place: int) -> None:
        self.question.setText(question)
        self.setAccessibleName(question)
        self.choice.show_choice(place)
        self.open_at(self.do_button)

    def _agree(self) -> None:
        self.leave()
        self.agreed.emit(self.choice.place)


THIN, THICK, SWATCH = 3, 9, 8  # pixels at 100 % text


class ThinBar(QWidget):
    """A thin progress bar."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._share = name, 0.0
        self.setAccessibleName(name)
        self._theme = current_theme()
        fix_height(self, THIN)

    def show_share(self, done: int, total: int) -> None:
        share = min(done / total, 1.0) if total else 0.0
        if share != self._share:
            self._share = share
            self.setAccessibleDescription(f"{100 * share:.0f} %")
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        palette, whole = self._theme.palette, QRectF(self.rect())
        for colour, part in ((palette.hairline, 1.0), (palette.accent, self._share)):
            if part > 0:
                painter.setBrush(QColor(colour))
                width = max(whole.width() * part, whole.height())
                painter.drawRoundedRect(QRectF(0, 0, width, whole.height()), whole.height() / 2, whole.height() / 2)
        painter.end()


class FitBar(QWidget):
    """Weights, KV and working memory as parts of the machine's memory; the excess is in a warm colour."""

    def __init__(self) -> None:
        super().__init__()
        self._fit: FitView | None = None
        self._theme = current_theme()
        fix_height(self, THICK)

    def show_fit(self, fit: FitView) -> None:
        self._fit = fit
        self.setAccessibleName(self.tr("About {0} of {1} of memory").format(size(fit.total), size(fit.memory)))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        if self._fit is None:
            return
        palette, fit = self._theme.palette, self._fit
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        whole = QRectF(self.rect())
        scale = whole.width() / max(fit.total, fit.memory, 1)
        painter.setBrush(QColor(palette.hairline))
        painter.drawRoundedRect(whole, 3, 3)
        left = 0.0
        for colour, part in zip(colours(palette), (fit.weights, fit.kv, fit.working, fit.loading), strict=True):
            width = part * scale
            painter.fillRect(QRectF(left, 0, width, whole.height()), QColor(colour))
            left += width
        if not fit.fits:
            beyond = fit.memory * scale
            painter.fillRect(QRectF(beyond, 0, left - beyond, whole.height()), QColor(palette.surprise[5]))
        painter.end()


class FitLegend(QWidget):
    """The parts of a `FitBar` by name, each with its colour and its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._labels = [ElidedLabel("", "soft", interface_font(11.5)) for _ in range(4)]
        line = row_in(self, spacing=5)
        self._swatches = [_Swatch(place) for place in range(4)]
        for swatch, label in zip(self._swatches, self._labels, strict=True):
            line.addWidget(swatch)
            line.addWidget(label)
            line.addSpacing(9)
        line.addStretch(1)

    def show_fit(self, fit: FitView) -> None:
        self._labels[0].setText(self.tr("weights {0}").format(size(fit.weights)))
        self._labels[1].setText(self.tr("KV {0}").format(size(fit.kv)))
        self._labels[2].setText(self.tr("work {0}").format(size(fit.working)))
        self._labels[3].setText(self.tr("while loading {0} more").format(size(fit.loading)))
        for part in (self._swatches[3], self._labels[3]):
            part.setVisible(bool(fit.loading))


class _Swatch(QWidget):
    """A square in the colour of a part of a `FitBar`."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self._place = place
        self._theme = current_theme()
        self._theme.scaled.connect(self._resize)
        self._resize()

    def _resize(self) -> None:
        self.setFixedSize(scaled(SWATCH), scaled(SWATCH))

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        painter = QPainter(self)
        painter.fillRect(self.rect(), QColor(colours(self._theme.palette)[self._place]))
        painter.end()


def colours(palette: Palette) -> tuple[str, str, str, str]:
    """The colours of weights, KV, working memory, and memory needed while loading."""
    return palette.accent, palette.disk, palette.bar_rest, palette.faint


KEPT, FLOAT32 = range(2)


class ImportBar(ChoiceBar):
    """Asks in which form to import a GGUF file, unless mlx can keep none of its weights quantised."""

    wanted = Signal(object, bool)  # the path; whether the weights stay quantised

    def __init__(self, home: QWidget) -> None:
        labels = [translate("ImportBar", "quantised"), translate("ImportBar", "float32")]
        super().__init__(home, translate("ImportBar", "Weights"), labels, translate("ImportBar", "Import"))
        self._plan: GgufPlan | None = None
        self.agreed.connect(self._go_on)

    def ask_form(self, plan: GgufPlan) -> None:
        """Asks for the form, or imports at once if there is no choice."""
        self._plan = plan
        if not plan.kept:
            self._go_on(FLOAT32)
            return
        question = self.tr(
            "{0}: kept quantised, the weights take {1} and run on mlx, and more slowly on hf, on the CPU. As float32 they take "
            "{2} and run everywhere. The values are the same."
        ).format(one_line(plan.path.name), size(plan.kept), size(plan.float32))
        note = f" {one_line(plan.note)}." if plan.note else ""
        self.ask_about(question + note, KEPT if plan.keeps else FLOAT32)

    def _go_on(self, place: int) -> None:
        assert self._plan is not None
        self.wanted.emit(self._plan.path, place == KEPT)


BITS = (4, 8)


class QuantiseBar(ChoiceBar):
    """Asks for the bits per weight."""

    wanted = Signal(int)  # bits

    def __init__(self, home: QWidget) -> None:
        labels = [translate("QuantiseBar", "{0} bit").format(bits) for bits in BITS]
        super().__init__(home, translate("QuantiseBar", "Bits per weight"), labels, translate("QuantiseBar", "Quantise"))
        self.agreed.connect(lambda place: self.wanted.emit(BITS[place]))

    def ask(self) -> None:
        question = self.tr("Creates a smaller and faster copy for mlx. 8 bit is more accurate, 4 bit is smaller.")
        self.ask_about(question, max(self.choice.place, 0))
