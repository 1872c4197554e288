"""The top bar: title, branch, model with its menu, and modes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from PySide6.QtCore import QEvent, QObject, QPoint, QSize, Qt, Signal
from PySide6.QtGui import QAction, QActionGroup, QCursor, QFont, QKeyEvent, QKeySequence, QResizeEvent
from PySide6.QtWidgets import QApplication, QButtonGroup, QHBoxLayout, QMenu, QPushButton, QSizePolicy, QToolButton, QWidget

from ui.core.shown import Fork
from ui.models.wording import used_words
from ui.port import BackendChoice, ModelChoice
from ui.theme.fonts import interface_font, scaled
from ui.theme.icons import SIZE_PX, icon
from ui.theme.scheme import current_theme
from ui.theme.text_size import fix_height, panel_width
from ui.transcript import Mode
from ui.widgets.controls import fill, row_in
from ui.widgets.labels import ElidedLabel, IconButton, Label, StepButton, plain_tooltip
from ui.widgets.visible import one_line

CHIP_HEIGHT = 27
MOST = 240  # pixels of the model's name, at 100 % text
MOST_LISTED = 300  # pixels of a name in the menu
FEWEST = 4  # letters: a shorter elided name is not shown


class ModelChip(QPushButton):
    """The model's name; opens the shelf as a menu (never blocking)."""

    chosen = Signal(str)  # source
    backend_chosen = Signal(str)  # name
    more_wanted = Signal()  # models than are on the shelf
    setup_wanted = Signal()  # the popover of model and adapters

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("model_chip")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        fix_height(self, CHIP_HEIGHT)
        self.setLayoutDirection(Qt.LayoutDirection.RightToLeft)  # the arrow after the name
        self._theme = current_theme()
        for news in (self._theme.changed, self._theme.scaled):
            news.connect(self._tint)
        self._tint()
        self._label = self._shown = ""
        self._offered: dict[str, tuple[ModelChoice, QAction]] = {}  # entries of the open menu by source
        self.show_model(None)

    def show_model(self, choice: ModelChoice | None) -> None:
        self._label = self.tr("Choose a model") if choice is None else one_line(choice.label)
        self._show(scaled(MOST))
        self.setAccessibleName(self.tr("Model: {0}").format(self._label))
        self.updateGeometry()

    def sizeHint(self) -> QSize:
        """The width of the whole name, up to a limit, however much of it is shown now."""
        hint, metrics = super().sizeHint(), self.fontMetrics()
        whole = min(metrics.horizontalAdvance(self._label), scaled(MOST))
        return QSize(hint.width() - metrics.horizontalAdvance(self._shown) + whole, hint.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        around = super().sizeHint().width() - self.fontMetrics().horizontalAdvance(self._shown)
        self._show(self.width() - around)

    def _show(self, room: int) -> None:
        metrics, room = self.fontMetrics(), min(room, scaled(MOST))
        fits = metrics.horizontalAdvance(self._label) <= room  # whole pixels, as in the size hint
        cut = metrics.elidedText(self._label, Qt.TextElideMode.ElideRight, room)
        self._shown = self._label if fits else cut if len(cut) > FEWEST else ""
        self.setText(self._shown.replace("&", "&&"))
        self.setToolTip(plain_tooltip(self._label) if self._shown != self._label else "")

    def open_menu(self, choices: Sequence[ModelChoice], backends: Sequence[BackendChoice] = ()) -> None:
        """Opens the menu of models and engines below the chip."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setLayoutDirection(QApplication.layoutDirection())  # not the chip's own
        menu.setAccessibleName(self.tr("Models"))
        menu.installEventFilter(self)
        menu.setToolTipsVisible(True)
        group = QActionGroup(menu)
        self._offered = {}
        for choice in choices:
            action = QAction(self._entry(choice, ""), group, checkable=True, checked=choice.loaded)
            action.setToolTip(plain_tooltip(choice.label))
            action.triggered.connect(lambda _checked, source=choice.source: self.chosen.emit(source))
            menu.addAction(action)
            self._offered[choice.source] = choice, action
        menu.destroyed.connect(self._offered.clear)
        if not choices:
            menu.addAction(self.tr("No model is here yet")).setEnabled(False)
        menu.addSeparator()
        menu.addAction(self.tr("More models…")).triggered.connect(lambda _checked=False: self.more_wanted.emit())
        menu.addAction(self.tr("Model and adapters…")).triggered.connect(lambda _checked=False: self.setup_wanted.emit())
        self._add_backends(menu, backends)
        right = self.mapToGlobal(QPoint(self.width(), self.height() + 4))
        menu.popup(QPoint(right.x() - menu.sizeHint().width(), right.y()))

    def show_fit(self, source: str, fits: bool) -> None:  # as the signal brings it
        """Shows in the open menu whether a model fits into memory."""
        if source in self._offered:
            choice, action = self._offered[source]
            action.setText(self._entry(choice, self.tr("fits") if fits else self.tr("does not fit")))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """A shortcut of the window closes the menu and runs its command."""
        if event.type() is QEvent.Type.KeyPress and isinstance(watched, QMenu) and isinstance(event, QKeyEvent):
            keys = QKeySequence(event.keyCombination())
            act = next((act for act in self.window().actions() if act.isEnabled() and act.shortcut() == keys), None)
            if act is not None:
                watched.close()
                act.trigger()
                return True
        return super().eventFilter(watched, event)

    def _entry(self, choice: ModelChoice, fit: str) -> str:
        """The text of a model's entry: its name and its facts."""
        name = self.fontMetrics().elidedText(one_line(choice.label), Qt.TextElideMode.ElideMiddle, scaled(MOST_LISTED))
        detail = " · ".join(part for part in (choice.detail, fit, used_words(choice.last_used, time.time())) if part)
        return f"{name}\t{one_line(detail)}".replace("&", "&&")

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


HEIGHT = 44
BUTTON_GAP = 4
LEFT, SIDEBAR = 220, 248  # width left of the title, which starts over the transcript; width of the sidebar at 100 %
# Pixels of names: first reduced to MOST, then to FAIR, then to LEAST.
TITLE_MOST, TITLE_FAIR, TITLE_LEAST = 480, 160, 76
BRANCH_MOST, BRANCH_FAIR, BRANCH_LEAST = 240, 110, 70
MODEL_FAIR, MODEL_LEAST = 150, 104  # with the arrow


class TopBar(QWidget):
    """The unified bar over the whole window."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("bar")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        fix_height(self, HEIGHT)
        self.menu_button = IconButton("menu", self.tr("Menu"))
        self.menu_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.menu_button.setMenu(menu := QMenu(self))
        menu.aboutToHide.connect(self._leave_menu)
        self.sidebar_button = IconButton("panel-left", self.tr("Show or hide the sidebar"))
        self.new_button = IconButton("square-pen", self.tr("New session"))
        self.inspector_button = IconButton("panel-right", self.tr("Show or hide the inspector"))
        self.title = ElidedLabel("", "", interface_font(weight=QFont.Weight.DemiBold))
        self.branch = BranchChip()
        self.model = ModelChip()
        self.modes = ModeSwitch()
        row = self._row = QHBoxLayout(self)
        row.setContentsMargins(14, 0, 14, 0)
        row.setSpacing(10)
        self.title.fewest = FEWEST
        self._spare = (self.sidebar_button, self.new_button)  # also in the menu
        self._left_part = self._left()
        fill(row, self._left_part, self.title, self.branch, 1, self.model, self.modes, self.inspector_button)
        self._over_sidebar, self._sidebar = False, SIDEBAR
        current_theme().scaled.connect(self._share_room)

    def _leave_menu(self) -> None:
        """Sends the button the leave event that it missed while the menu had the mouse."""
        if not self.menu_button.rect().contains(self.menu_button.mapFromGlobal(QCursor.pos())):
            QApplication.sendEvent(self.menu_button, QEvent(QEvent.Type.Leave))

    def show_model(self, choice: ModelChoice | None) -> None:
        self.model.show_model(choice)
        self._share_room()  # a widget of fixed size requests no layout by itself

    def show_branch(self, name: str, fork: Fork | None) -> None:
        self.branch.show_branch(name, fork)
        self._share_room()  # as above

    def align_title(self, shown: bool, width: int) -> None:  # a state, not an option
        """Starts the title where the sidebar ends, if there is room; without a sidebar at the left.

        Args:
            shown: Whether the sidebar is shown.
            width: The sidebar's width at 100 % text.
        """
        self._over_sidebar, self._sidebar = shown, width
        self._share_room()

    def minimumSizeHint(self) -> QSize:
        """No minimum width: parts shrink or hide."""
        return QSize(0, self.height())

    def event(self, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.LayoutRequest, QEvent.Type.Resize):
            self._share_room()  # before the layout uses the widths
        return super().event(event)

    def _share_room(self) -> None:
        """Shrinks parts until they fit: the gap over the sidebar, the branch's name, the title, then the branch.

        Then the model's name is elided, and at last the buttons that are also in the menu are hidden.
        """
        row, title, branch, model, left = self._row, self.title, self.branch, self.model, self._left_part
        sides, others = row.contentsMargins(), (self.modes, self.inspector_button)
        tight, bare = self._buttons_width(self.menu_button, *self._spare), self._buttons_width(self.menu_button)
        widths: dict[QWidget, int] = {part: part.sizeHint().width() for part in (title, model)}
        widths[left] = max(panel_width(self._sidebar) - SIDEBAR + LEFT, tight) if self._over_sidebar else tight
        if branch.wanted:
            widths[branch] = branch.sizeHint().width()
        lack = sum(widths.values()) + sum(part.sizeHint().width() for part in others) - self.width()
        lack += sides.left() + sides.right() + row.spacing() * (len(widths) + len(others) - 1)
        arrows = branch.least_width()
        for part, least in (
            (title, scaled(TITLE_MOST)),
            (branch, scaled(BRANCH_MOST)),
            (left, tight),
            (branch, arrows + scaled(BRANCH_FAIR)),
            (title, scaled(TITLE_FAIR)),
            (branch, arrows),
            (title, scaled(TITLE_LEAST)),
            (model, scaled(MODEL_FAIR)),
            (branch, -row.spacing()),  # hidden
            (model, scaled(MODEL_LEAST)),
            (left, bare),  # without the buttons that are also in the menu
            (title, title.minimumSizeHint().width()),
            (model, 0),
        ):
            if part in widths and lack > 0:
                given = max(widths[part] - least, 0)
                whole = (part is branch and least <= arrows) or (part is left and least == bare)
                given = given if whole else min(given, lack)  # names shrink, buttons are shown or hidden
                widths[part] -= given
                lack -= given
        for part in (title, model):  # take the room left by the branch
            more = min(max(-lack, 0), part.sizeHint().width() - widths[part])
            widths[part] += more
            lack += more
        if widths.get(branch, 0) == arrows and -lack >= scaled(BRANCH_LEAST):
            widths[branch] = min(arrows - lack, branch.sizeHint().width())
        branch.setVisible(widths.get(branch, 0) > 0)
        for button in self._spare:
            button.setVisible(widths[left] >= tight)
        for part, width in widths.items():
            part.setFixedWidth(max(width, 0))

    def _buttons_width(self, *buttons: QWidget) -> int:
        """The width of the wanted ones of these buttons, side by side."""
        wanted = [button for button in buttons if button in self._spare or not button.isHidden()]
        return sum(button.sizeHint().width() for button in wanted) + BUTTON_GAP * max(len(wanted) - 1, 0)

    def _left(self) -> QWidget:
        left = QWidget()
        row_in(left, self.menu_button, self.sidebar_button, 1, self.new_button, spacing=BUTTON_GAP)
        return left


class BranchChip(QWidget):
    """The branch shown and the way to its siblings: rainy ending ‹ 2 / 3 ›. Hidden if there is only one branch."""

    step_wanted = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("chip")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        fix_height(self, CHIP_HEIGHT)
        self.name = ElidedLabel()
        self.name.least_px, self.name.fewest = 0, FEWEST
        self.place = Label()
        self.back = self._step("‹", self.tr("Previous variant"), -1)
        self.forth = self._step("›", self.tr("Next variant"), +1)
        row = self._row = QHBoxLayout(self)
        row.setContentsMargins(6, 0, 6, 0)
        row.setSpacing(0)
        self.name.setContentsMargins(3, 0, 8, 0)  # in the name, so that arrows alone are centred
        row.addWidget(self.name)
        row.addWidget(self.back)
        row.addSpacing(2)
        row.addWidget(self.place)
        row.addSpacing(2)
        row.addWidget(self.forth)
        self.wanted = False  # to be shown, if there is room
        self.hide()

    def least_width(self) -> int:
        """The width without the name."""
        return self._row.minimumSize().width()

    def show_branch(self, name: str, fork: Fork | None) -> None:
        """Names the branch; the arrows go to the siblings of `fork`."""
        self.wanted = bool(name) or fork is not None
        self.setVisible(self.wanted)
        self.name.setText(name)
        self.setToolTip(plain_tooltip(one_line(name)))  # of the whole chip, for the name may be hidden
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


class ModeSwitch(QWidget):
    """Read | Tokens, as a control of two segments."""

    chosen = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("segments")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        fix_height(self, CHIP_HEIGHT)
        self._group = QButtonGroup(self)
        row = row_in(self, spacing=0)
        self.buttons: dict[Mode, QPushButton] = {}
        for mode, name, words in (
            (Mode.READ, "segment_first", self.tr("Read")),
            (Mode.TOKENS, "segment_last", self.tr("Tokens")),
        ):
            button = QPushButton(words)
            button.setCheckable(True)
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            button.setObjectName(name)
            button.setAccessibleName(words)
            button.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Expanding)
            button.setFont(interface_font(weight=QFont.Weight.Medium))
            button.clicked.connect(lambda _checked, mode=mode: self.chosen.emit(mode))
            self._group.addButton(button)
            row.addWidget(button)
            self.buttons[mode] = button

    def show_mode(self, mode: Mode) -> None:
        self.buttons[mode].setChecked(True)
