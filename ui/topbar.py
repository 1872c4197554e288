"""The bar at the top: panels and new session at the left, title and branch, model, Read | Tokens."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPoint, QSize, Qt, Signal
from PySide6.QtGui import QAction, QActionGroup, QFont, QResizeEvent
from PySide6.QtWidgets import QApplication, QButtonGroup, QHBoxLayout, QMenu, QPushButton, QSizePolicy, QToolButton, QWidget

from ui.port import BackendChoice, ModelChoice
from ui.shown import Fork
from ui.theme.fonts import interface_font, scaled
from ui.theme.icons import SIZE_PX, icon
from ui.theme.scheme import current_theme
from ui.theme.text_size import fix_height, panel_width
from ui.transcript import Mode
from ui.transcript.visible import one_line
from ui.widgets import ElidedLabel, IconButton, Label, StepButton, plain_tooltip

HEIGHT = 44
CONTROL_HEIGHT = 27
LEFT, SIDEBAR = 220, 248  # up to the title, which stands over the transcript; the sidebar at 100 %
TITLE_MOST, BRANCH_MOST = 480, 240  # pixels; beyond, they give way before anything else does
TITLE_FAIR = 300  # down to here it makes room for the model's name
BRANCH_FAIR, FEWEST = 110, 4  # pixels of a branch's name that tell it from others; letters that still say anything
MODEL_MOST, MODEL_FAIR, MODEL_LEAST = 240, 132, 60  # where it is fair, a name can be told from another one


class TopBar(QWidget):
    """The unified bar. It only shows and asks; the window decides."""

    mode_chosen = Signal(object)  # Mode
    step_wanted = Signal(int)  # to the previous (-1) or next (+1) variant
    setup_wanted = Signal()
    model_chosen = Signal(str)  # source
    backend_chosen = Signal(str)  # name

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("bar")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        fix_height(self, HEIGHT)
        self.menu_button = IconButton("menu", self.tr("Menu"))
        self.menu_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.sidebar_button = IconButton("panel-left", self.tr("Show or hide the sidebar"))
        self.new_button = IconButton("square-pen", self.tr("New session"))
        self.inspector_button = IconButton("panel-right", self.tr("Show or hide the inspector"))
        self.title = ElidedLabel("", "", interface_font(weight=QFont.Weight.DemiBold))
        self.branch = BranchChip()
        self.branch.step_wanted.connect(self.step_wanted)
        self.model = ModelChip()
        self.model.clicked.connect(self.setup_wanted)
        self.model.chosen.connect(self.model_chosen)
        self.model.backend_chosen.connect(self.backend_chosen)
        self.modes = ModeSwitch()
        self.modes.chosen.connect(self.mode_chosen)
        row = self._row = QHBoxLayout(self)
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
        self._over_sidebar = False
        current_theme().scaled.connect(self._share_room)

    def show_model(self, choice: ModelChoice | None) -> None:
        """Names the model in use."""
        self.model.show_model(choice)
        self._share_room()  # a part of fixed size asks for no layout by itself

    def stand_over_sidebar(self, shown: bool) -> None:  # a state, not an option
        """The title stands where the sidebar ends, if there is room; without a sidebar it moves to the left."""
        self._over_sidebar = shown
        self._share_room()

    def event(self, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.LayoutRequest, QEvent.Type.Resize):
            self._share_room()  # before the layout looks at the widths
        return super().event(event)

    def _share_room(self) -> None:
        """What does not fit: the place over the sidebar, names as far as they can be read, then all of them; the title last."""
        row = self._row
        sides, others = row.contentsMargins(), (self.modes, self.inspector_button)
        widths: dict[QWidget, int] = {part: part.sizeHint().width() for part in (self.title, self.model)}
        left = self._left_part.minimumSizeHint().width()
        widths[self._left_part] = max(panel_width(SIDEBAR) - SIDEBAR + LEFT, left) if self._over_sidebar else left
        if not self.branch.isHidden():
            widths[self.branch] = self.branch.sizeHint().width()
        title, branch = widths[self.title], widths.get(self.branch, 0)
        lack = sum(widths.values()) + sum(part.sizeHint().width() for part in others) - self.width()
        lack += sides.left() + sides.right() + row.spacing() * (len(widths) + len(others) - 1)
        for part, least in (
            (self.title, min(title, TITLE_MOST)),
            (self.branch, min(branch, BRANCH_MOST)),
            (self._left_part, left),
            (self.branch, min(branch, self.branch.least_width() + BRANCH_FAIR)),
            (self.model, MODEL_FAIR),
            (self.title, min(title, TITLE_FAIR)),
            (self.branch, self.branch.least_width()),
            (self.model, MODEL_LEAST),
            (self.title, self.title.minimumSizeHint().width()),
        ):
            if part in widths and lack > 0:
                given = min(max(widths[part] - least, 0), lack)
                widths[part] -= given
                lack -= given
        for part, width in widths.items():
            part.setFixedWidth(width)

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
        fix_height(self, CONTROL_HEIGHT)
        self.name = ElidedLabel()
        self.name.least_px, self.name.fewest = 0, FEWEST
        self.place = Label()
        self.back = self._step("‹", self.tr("Previous variant"), -1)
        self.forth = self._step("›", self.tr("Next variant"), +1)
        row = self._row = QHBoxLayout(self)
        row.setContentsMargins(9, 0, 6, 0)
        row.setSpacing(2)
        row.addWidget(self.name)
        row.addSpacing(4)
        row.addWidget(self.back)
        row.addWidget(self.place)
        row.addWidget(self.forth)
        self.hide()

    def least_width(self) -> int:
        """What it needs when its name gives way."""
        return self._row.minimumSize().width()

    def show_branch(self, name: str, fork: Fork | None) -> None:
        """Names the branch; the arrows go to the siblings of `fork`."""
        self.setVisible(bool(name) or fork is not None)
        self.name.setText(name)
        self.setToolTip(plain_tooltip(one_line(name)))  # of all of it: the name may have no room
        self.name.setVisible(bool(name))
        for part in (self.back, self.place, self.forth):
            part.setVisible(fork is not None)
        if fork is not None:
            self.place.setText(f"{fork.place + 1} / {len(fork.variants)}")
            self.place.setAccessibleName(self.tr("Variant {0} of {1}").format(fork.place + 1, len(fork.variants)))
            self.back.setEnabled(fork.step(-1) is not None)
            self.forth.setEnabled(fork.step(+1) is not None)

    def _step(self, sign: str, words: str, by: int) -> StepButton:
        button = StepButton(sign, words)
        button.clicked.connect(lambda: self.step_wanted.emit(by))
        return button


class ModelChip(QPushButton):
    """The model's name; pressed, it opens what the session is set to. The shelf opens under it as a menu (never blocking)."""

    chosen = Signal(str)  # source
    backend_chosen = Signal(str)  # name
    more_wanted = Signal()  # than are on the shelf

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("model_chip")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        fix_height(self, CONTROL_HEIGHT)
        self.setLayoutDirection(Qt.LayoutDirection.RightToLeft)  # the arrow after the name
        self._theme = current_theme()
        for news in (self._theme.changed, self._theme.scaled):
            news.connect(self._tint)
        self._tint()
        self._label = self._shown = ""
        self.show_model(None)

    def show_model(self, choice: ModelChoice | None) -> None:
        """Names the model in use."""
        self._label = self.tr("Choose a model") if choice is None else one_line(choice.label)
        self._show(MODEL_MOST)
        self.setAccessibleName(self.tr("Model: {0}").format(self._label))
        self.updateGeometry()

    def sizeHint(self) -> QSize:
        """As wide as the name wants it, up to a limit, whatever is shown of it now."""
        hint, metrics = super().sizeHint(), self.fontMetrics()
        whole = min(metrics.horizontalAdvance(self._label), MODEL_MOST)
        return QSize(hint.width() - metrics.horizontalAdvance(self._shown) + whole, hint.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        around = super().sizeHint().width() - self.fontMetrics().horizontalAdvance(self._shown)
        self._show(self.width() - around)

    def _show(self, room: int) -> None:
        metrics, room = self.fontMetrics(), min(room, MODEL_MOST)
        fits = metrics.horizontalAdvance(self._label) <= room  # whole pixels, as in the size hint
        self._shown = self._label if fits else metrics.elidedText(self._label, Qt.TextElideMode.ElideRight, room)
        self.setText(self._shown.replace("&", "&&"))
        self.setToolTip(plain_tooltip(self._label) if self._shown != self._label else "")

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
            menu.addAction(self.tr("No model is here yet")).setEnabled(False)
        menu.addSeparator()
        menu.addAction(self.tr("More models…")).triggered.connect(lambda _checked=False: self.more_wanted.emit())
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

    def _tint(self, _palette: object = None) -> None:
        px = scaled(SIZE_PX)
        self.setIconSize(QSize(px, px))
        self.setIcon(icon("chevron-down", self._theme.palette.soft, px))


class ModeSwitch(QWidget):
    """Read | Tokens as one control of two segments."""

    chosen = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("segments")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        fix_height(self, CONTROL_HEIGHT)
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
