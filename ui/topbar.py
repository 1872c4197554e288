"""The bar at the top: panels and new session at the left, title and branch, model, Read | Tokens."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtGui import QAction, QActionGroup, QFont
from PySide6.QtWidgets import QApplication, QButtonGroup, QHBoxLayout, QMenu, QPushButton, QSizePolicy, QToolButton, QWidget

from ui.port import BackendChoice, ModelChoice
from ui.shown import Fork
from ui.theme.fonts import interface_font
from ui.theme.icons import icon
from ui.theme.scheme import current_theme
from ui.transcript import Mode
from ui.widgets import ElidedLabel, IconButton, Label

HEIGHT = 44
CONTROL_HEIGHT = 27
LEFT = 220  # up to the title, which stands over the transcript


class TopBar(QWidget):
    """The unified bar. It only shows and asks; the window decides."""

    mode_chosen = Signal(object)  # Mode
    step_wanted = Signal(int)  # to the previous (-1) or next (+1) variant
    models_wanted = Signal()
    model_chosen = Signal(str)  # source
    backend_chosen = Signal(str)  # name

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("bar")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedHeight(HEIGHT)
        self.menu_button = IconButton("menu", self.tr("Menu"))
        self.menu_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.sidebar_button = IconButton("panel-left", self.tr("Show or hide the sidebar"))
        self.new_button = IconButton("square-pen", self.tr("New session"))
        self.inspector_button = IconButton("panel-right", self.tr("Show or hide the inspector"))
        self.title = ElidedLabel("", "", interface_font(weight=QFont.Weight.DemiBold))
        self.title.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
        self.branch = BranchChip()
        self.branch.step_wanted.connect(self.step_wanted)
        self.model = ModelChip()
        self.model.clicked.connect(self.models_wanted)
        self.model.chosen.connect(self.model_chosen)
        self.model.backend_chosen.connect(self.backend_chosen)
        self.modes = ModeSwitch()
        self.modes.chosen.connect(self.mode_chosen)
        row = QHBoxLayout(self)
        row.setContentsMargins(14, 0, 14, 0)
        row.setSpacing(10)
        self._left_part = self._left()
        row.addWidget(self._left_part)
        row.addWidget(self.title)
        row.addWidget(self.branch)
        row.addStretch(1)
        row.addWidget(self.model)
        row.addWidget(self.modes)
        row.addWidget(self.inspector_button)

    def stand_over_sidebar(self, shown: bool) -> None:
        """The title stands where the sidebar ends; without a sidebar it moves to the left."""
        self._left_part.setFixedWidth(LEFT if shown else self._left_part.minimumSizeHint().width())

    def _left(self) -> QWidget:
        left = QWidget()
        row = QHBoxLayout(left)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(4)
        row.addWidget(self.menu_button)
        row.addWidget(self.sidebar_button)
        row.addStretch(1)
        row.addWidget(self.new_button)
        return left


class BranchChip(QWidget):
    """Which branch is shown and the way to its siblings: rainy ending ‹ 2 / 3 ›. Hidden where there is one branch."""

    step_wanted = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("chip")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedHeight(CONTROL_HEIGHT)
        self.name = ElidedLabel()
        self.name.least_px = 96
        self.place = Label()
        self.back = self._step("‹", self.tr("Previous variant"), -1)
        self.forth = self._step("›", self.tr("Next variant"), +1)
        row = QHBoxLayout(self)
        row.setContentsMargins(9, 0, 6, 0)
        row.setSpacing(2)
        row.addWidget(self.name)
        row.addSpacing(4)
        row.addWidget(self.back)
        row.addWidget(self.place)
        row.addWidget(self.forth)
        self.hide()

    def show_branch(self, name: str, fork: Fork | None) -> None:
        """Names the branch; the arrows go to the siblings of `fork`."""
        self.setVisible(bool(name) or fork is not None)
        self.name.setText(name)
        self.name.setVisible(bool(name))
        for part in (self.back, self.place, self.forth):
            part.setVisible(fork is not None)
        if fork is not None:
            self.place.setText(f"{fork.place + 1} / {len(fork.variants)}")
            self.place.setAccessibleName(self.tr("Variant {0} of {1}").format(fork.place + 1, len(fork.variants)))
            self.back.setEnabled(fork.step(-1) is not None)
            self.forth.setEnabled(fork.step(+1) is not None)

    def _step(self, sign: str, words: str, by: int) -> QToolButton:
        button = QToolButton()
        button.setText(sign)
        button.setProperty("kind", "step")
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        button.setAccessibleName(words)
        button.setToolTip(words)
        button.clicked.connect(lambda: self.step_wanted.emit(by))
        return button


class ModelChip(QPushButton):
    """The model's name; pressed, it opens the shelf as a menu (never blocking)."""

    chosen = Signal(str)  # source
    backend_chosen = Signal(str)  # name

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("model_chip")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setFixedHeight(CONTROL_HEIGHT)
        self.setLayoutDirection(Qt.LayoutDirection.RightToLeft)  # the arrow after the name
        self._theme = current_theme()
        self._theme.changed.connect(self._tint)
        self._tint()
        self.show_model(None)

    def show_model(self, choice: ModelChoice | None) -> None:
        """Names the model in use."""
        label = self.tr("Choose a model") if choice is None else " ".join(choice.label.split())
        shown = self.fontMetrics().elidedText(label, Qt.TextElideMode.ElideRight, 240)
        self.setText(shown.replace("&", "&&"))
        self.setAccessibleName(self.tr("Model: {0}").format(label))

    def open_menu(self, choices: Sequence[ModelChoice], backends: Sequence[BackendChoice] = ()) -> None:
        """Shows what is on the shelf and what can run it, under the chip."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setLayoutDirection(QApplication.layoutDirection())  # not the chip's own
        menu.setAccessibleName(self.tr("Models"))
        group = QActionGroup(menu)
        for choice in choices:
            label, detail = (" ".join(words.split()).replace("&", "&&") for words in (choice.label, choice.detail))
            action = QAction(f"{label}\t{detail}", group, checkable=True, checked=choice.loaded)
            action.triggered.connect(lambda _checked, source=choice.source: self.chosen.emit(source))
            menu.addAction(action)
        if not choices:
            menu.addAction(self.tr("No model is here yet: elsewise models import FILE")).setEnabled(False)
        self._add_backends(menu, backends)
        right = self.mapToGlobal(QPoint(self.width(), self.height() + 4))
        menu.popup(QPoint(right.x() - menu.sizeHint().width(), right.y()))

    def _add_backends(self, menu: QMenu, backends: Sequence[BackendChoice]) -> None:
        if not backends:
            return
        menu.addSeparator()
        group = QActionGroup(menu)
        for backend in backends:
            words = self.tr("run on {0}").format(backend.name).replace("&", "&&")
            problem = backend.problem.replace("&", "&&")
            action = QAction(f"{words}\t{problem}" if problem else words, group, checkable=True, checked=backend.chosen)
            action.setEnabled(not backend.problem)
            action.triggered.connect(lambda _checked, name=backend.name: self.backend_chosen.emit(name))
            menu.addAction(action)

    def _tint(self) -> None:
        self.setIcon(icon("chevron-down", self._theme.palette.soft))


class ModeSwitch(QWidget):
    """Read | Tokens as one control of two segments."""

    chosen = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("segments")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedHeight(CONTROL_HEIGHT)
        self._group = QButtonGroup(self)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        self.buttons: dict[Mode, QPushButton] = {}
        for mode, name, words in (
            (Mode.READ, "segment_first", self.tr("Read")),
            (Mode.TOKENS, "segment_last", self.tr("Tokens")),
        ):
            button = QPushButton(words)
            button.setCheckable(True)
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            button.setObjectName(name)
            button.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Expanding)
            button.setFont(interface_font(weight=QFont.Weight.Medium))
            button.clicked.connect(lambda _checked, mode=mode: self.chosen.emit(mode))
            self._group.addButton(button)
            row.addWidget(button)
            self.buttons[mode] = button

    def show_mode(self, mode: Mode) -> None:
        """Marks the segment."""
        self.buttons[mode].setChecked(True)
