"""The popover under the model's name: five pages, closed by Escape or by a click outside."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QPoint, Qt
from PySide6.QtGui import QHideEvent, QMouseEvent, QShowEvent
from PySide6.QtWidgets import QApplication, QFrame, QVBoxLayout, QWidget
from shiboken6 import isValid

from ui.controller.setup import MODEL, Change, SetupController
from ui.port import SessionSetup, StatusView
from ui.port.settings import SetupCommands
from ui.setup.form_page import FormPage
from ui.setup.model_page import ModelPage
from ui.setup.sampling_page import SamplingPage
from ui.setup.system_page import SystemPage
from ui.setup.tools_page import ToolsPage
from ui.theme.fonts import scaled
from ui.theme.text_size import panel_width
from ui.widgets.controls import column_in
from ui.widgets.labels import Notice
from ui.widgets.tabs import Tabs

WIDTH, HEIGHT = 400, 600
EDGE = 8  # least distance to the edges of the window
GAP = 6  # below the bar


class SetupPopover(QFrame):
    """Shows a `SessionSetup` over the window and asks the controller for changes.

    Args:
        controller: Reads and changes the settings of the session shown.
        anchor: The part of the bar above it.
        parent: The window's content.
    """

    def __init__(self, controller: SetupController, anchor: QWidget, parent: QWidget) -> None:
        super().__init__(parent)
        self.setObjectName("popover")
        self.setAccessibleName(self.tr("Model and session"))
        self._controller, self._anchor, self._parent = controller, anchor, parent
        self._session_id: int | None = None
        self._before: QWidget | None = None  # had the focus before
        self.model, self.system, self.sampling = ModelPage(), SystemPage(), SamplingPage()
        self.form, self.tools = FormPage(), ToolsPage()
        self.notice = Notice()
        self._pages = Tabs((16, 10, 16, 0), 18, sideways=False)
        self.tabs, self.show_page = self._pages.buttons, self._pages.show_page
        self._lay_out()
        self._connect()
        self.hide()

    # ---- open and closed ----------------------------------------------------------------------------------------------

    def open(self, page: int = MODEL) -> None:
        """Opens the popover at a page, or shows that page."""
        if self.isHidden():
            self._before = QApplication.focusWidget()
        self._controller.ask()
        self.notice.clear()
        self.show_page(page)
        self.place()
        self.show()
        self.raise_()
        self.tabs[page].setFocus(Qt.FocusReason.PopupFocusReason)

    def toggle(self, page: int = MODEL) -> None:
        """Opens a page, or closes the popover if that page is open."""
        if self.isVisible() and self._pages.stack.currentIndex() == page:
            self.close_again()
        else:
            self.open(page)

    def close_again(self) -> None:
        """Closes the popover; a focus inside it goes back to the widget that had it before."""
        focused = QApplication.focusWidget()
        inside = focused is not None and self.isAncestorOf(focused)
        self.hide()
        before, self._before = self._before, None
        if inside:
            home = before if before is not None and isValid(before) and before.isVisible() else self._anchor
            home.setFocus(Qt.FocusReason.PopupFocusReason)

    def place(self) -> None:
        """Places the popover below the anchor, inside the window."""
        room = self._parent.rect().adjusted(EDGE, EDGE, -EDGE, -EDGE)
        corner = QPoint(self._anchor.width(), self._anchor.height() + GAP)
        under = self._parent.mapFromGlobal(self._anchor.mapToGlobal(corner))  # the bar is not in the parent
        under.setY(max(under.y(), GAP))
        width = min(panel_width(WIDTH), room.width())
        height = max(min(scaled(HEIGHT), room.bottom() - under.y()), 160)
        left = max(min(under.x() - width, room.right() - width), room.left())
        self.setGeometry(left, under.y(), width, height)

    # ---- what is shown ------------------------------------------------------------------------------------------------

    def show_setup(self, setup: SessionSetup) -> None:
        if setup.session_id != self._session_id:
            self.model.adapters.flush()  # pending changes belong to the previous session
            self.sampling.options.flush()
            self._session_id = setup.session_id
            self.sampling.options.forget_drafts()
        for shown in (self.model, self.system, self.sampling, self.form, self.tools):
            shown.show_setup(setup)
        if setup.notes and not self.notice.words:
            self.notice.say("\n".join(setup.notes))

    def show_status(self, status: StatusView) -> None:
        """Passes the status to the pages that disable what the running model lacks."""
        for page in (self.model, self.sampling.options, self.form):
            page.show_status(status)

    # ---- events -------------------------------------------------------------------------------------------------------

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        QApplication.instance().installEventFilter(self)  # type: ignore[union-attr]  # there is one, widgets exist

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        QApplication.instance().removeEventFilter(self)  # type: ignore[union-attr]  # there is one, widgets exist

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.MouseButtonPress and isinstance(watched, QWidget) and isinstance(event, QMouseEvent):
            beside = watched.window() is self.window() and watched is not self and not self.isAncestorOf(watched)
            if beside and watched is not self._anchor:
                self.close_again()
        elif watched in (self._parent, self._anchor) and event.type() in (QEvent.Type.Resize, QEvent.Type.Move):
            self.place()
        return False

    # ---- how ----------------------------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        for words, page in (
            (self.tr("Model"), self.model),
            (self.tr("System"), self.system),
            (self.tr("Sampling"), self.sampling),
            (self.tr("Format"), self.form),
            (self.tr("Tools"), self.tools),
        ):
            self._pages.add(words, page)
        foot = QVBoxLayout()
        foot.setContentsMargins(12, 0, 12, 12)
        foot.addWidget(self.notice)
        column_in(self, self._pages, (self._pages.stack, 1), foot, spacing=0, margins=(1, 1, 1, 1))

    def _connect(self) -> None:
        controller = self._controller
        controller.changed.connect(self.show_setup)
        controller.refused.connect(self.notice.say)
        self.sampling.options.refused.connect(self.notice.say)
        controller.format_checked.connect(self.form.show_checked)
        controller.tools_checked.connect(self.tools.show_checked)
        change = self._change
        self.model.adapter_wanted.connect(lambda folder: change(lambda c, s: c.add_adapter(s, folder)))
        self.model.adapter_field.wanted.connect(self._get_adapter)
        self.model.adapters.wanted.connect(lambda stack: change(lambda c, s: c.set_adapters(s, stack)))
        self.model.guess_wanted.connect(lambda guess: change(lambda c, s: c.set_guess(s, guess)))
        self.system.system_wanted.connect(lambda text: change(lambda c, s: c.set_system(s, text)))
        self.system.pinned.dropped.connect(lambda files: change(lambda c, s: c.pin_files(s, files)))
        self.sampling.options.wanted.connect(lambda name, value: change(lambda c, s: c.set_option(s, name, value)))
        self.sampling.preset_wanted.connect(lambda name: change(lambda c, s: c.choose_preset(s, name)))
        self.sampling.save_wanted.connect(lambda name: change(lambda c, s: c.save_preset(s, name)))
        self.sampling.delete_wanted.connect(lambda name: change(lambda c, s: c.delete_preset(s, name)))
        self.form.format_wanted.connect(lambda form: change(lambda c, s: c.set_format(s, form)))
        self.form.check_wanted.connect(controller.check_format)
        self.tools.tools_wanted.connect(lambda source: change(lambda c, s: c.set_tools(s, source)))
        self.tools.check_wanted.connect(controller.check_tools)

    def _get_adapter(self, wanted: str) -> None:
        self.notice.clear()
        field = self.model.adapter_field

        async def get(commands: SetupCommands, session: int) -> SessionSetup:
            got = False
            try:
                setup = await commands.get_adapter(session, wanted)
                got = True
            finally:
                field.end(wanted, got=got)
            return setup

        self._controller.change(get, field.refuse, session_id=self._session_id)

    def _change(self, change: Change) -> None:
        self.notice.clear()
        self._controller.change(change, session_id=self._session_id)  # the session of these fields, whichever is shown by now
