"""The menus and their keys: what each entry does, recent files, and the windows that are open."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication, QMainWindow, QMenu

from ui.desk import Desk
from ui.port import translate
from ui.setup.desk import MODEL, SAMPLING
from ui.transcript import Mode
from ui.widgets.visible import one_line
from ui.window.actions import Actions, connect, copy_focused
from ui.window.commands import Commands
from ui.window.frame import Frame
from ui.window.stage import Stage
from ui.window.transfers import Transfers


def wire_recent(menu: QMenu, transfers: Transfers) -> None:
    """Lists them each time the menu opens; those that are gone cannot be chosen."""

    def add(words: str) -> QAction:
        return menu.addAction(one_line(words).replace("&", "&&"))

    def show_recent() -> None:
        menu.clear()
        for path in transfers.recent:
            action = add(f"{path.name} – {path.parent}")
            action.setEnabled(path.exists())
            connect(action, partial(transfers.take, path))
        if not transfers.recent:
            add(translate("RecentFiles", "No recent files")).setEnabled(False)
            return
        menu.addSeparator()
        connect(add(translate("RecentFiles", "Clear Menu")), transfers.recent.clear)

    menu.aboutToShow.connect(show_recent)


def known_paths(held: object) -> list[Path]:
    """Paths as a window's state keeps them; anything else in it is passed over."""
    return [Path(each) for each in held if isinstance(each, str)] if isinstance(held, list | tuple) else []


TITLE_MOST = 60  # characters of a title in the menu


def wire_window_menu(window: QMainWindow, acts: Actions) -> None:
    """Connects what the menu has, and lists, each time it opens, the windows that are open then."""
    menu = acts.windows
    listed: list[QAction] = []

    def show_open() -> None:
        for action in listed:
            menu.removeAction(action)
            action.deleteLater()
        listed.clear()
        listed.append(menu.addSeparator())
        for each in open_windows():
            title = one_line(each.windowTitle())
            action = menu.addAction(_plain(title))
            action.setCheckable(True)
            action.setChecked(each is window)
            connect(action, partial(come_forward, each))
            listed.append(action)

    connect(acts.minimise, window.showMinimized)
    connect(acts.zoom, partial(zoom, window))
    connect(acts.all_to_front, all_to_front)
    menu.aboutToShow.connect(show_open)


def open_windows() -> list[QMainWindow]:
    """The windows of the app that can be seen or were minimised, by their titles."""
    tops = (widget for widget in QApplication.topLevelWidgets() if isinstance(widget, QMainWindow))
    return sorted((window for window in tops if window.isVisible()), key=lambda window: (window.windowTitle(), id(window)))


def come_forward(window: QMainWindow) -> None:
    """In front of all others, with the keyboard, also where it was minimised."""
    if window.isMinimized():
        window.showNormal()
    window.raise_()
    window.activateWindow()


def zoom(window: QMainWindow) -> None:
    """As large as the screen, and back."""
    window.showNormal() if window.isMaximized() else window.showMaximized()


def all_to_front() -> None:
    """Every window of the app in front of those of others; minimised ones stay where they are, the active one is the first."""
    active = QApplication.activeWindow()
    for window in open_windows():
        if not window.isMinimized():
            window.raise_()
    if active is not None:
        active.raise_()


def _plain(title: str) -> str:
    """A title as the text of a menu's entry: no letter of it is a key."""
    cut = title if len(title) <= TITLE_MOST else title[: TITLE_MOST - 1] + "…"
    return cut.replace("&", "&&")


BEAMS = 4  # by the menu; the inspector has more


def install_menu(menu: QMenu, acts: Actions, parts: Frame) -> None:
    """Puts the actions into the menu bar, or into `menu` under the bar's button; panels have buttons of their own."""
    acts.install(menu)
    parts.top.menu_button.setMenu(menu)
    parts.top.menu_button.setVisible(not menu.isEmpty())
    parts.top.sidebar_button.clicked.connect(acts.sidebar.trigger)
    parts.top.inspector_button.clicked.connect(acts.inspector.trigger)


def wire_session(acts: Actions, desk: Desk, commands: Commands, transfers: Transfers) -> None:
    """Sessions, their files, their branches."""
    connect(acts.new_session, commands.new_session)
    connect(acts.rename, commands.rename)
    connect(acts.pin, commands.pin_shown)
    connect(acts.trash, commands.trash_shown)
    connect(acts.undo, desk.undo_stack.undo)
    connect(acts.previous, lambda: desk.tree.step_variant(-1))
    connect(acts.next, lambda: desk.tree.step_variant(+1))
    connect(acts.compare, commands.compare)
    connect(acts.second, desk.second.ask_menu)
    connect(acts.import_file, transfers.ask_import)
    for form, action in acts.exports.items():
        connect(action, partial(transfers.ask_export, form))


def wire_answers(acts: Actions, desk: Desk, commands: Commands, show_setup: Callable[[int], None]) -> None:
    """Answers, and what they are made with; `show_setup` opens a page of that."""
    connect(acts.stop, desk.answers.stop)
    connect(acts.regenerate, commands.regenerate)
    connect(acts.regenerate_exactly, commands.regenerate_exactly)
    connect(acts.continue_answer, commands.continue_turn)
    connect(acts.setup, partial(show_setup, MODEL))
    connect(acts.sampling, partial(show_setup, SAMPLING))
    for count, action in acts.ways.items():
        connect(action, partial(commands.find_columns, count, beams=False))
    connect(acts.clear_cache, desk.cache.clear)
    connect(acts.beams, lambda: commands.find_columns(BEAMS, beams=True))


def wire_view(acts: Actions, parts: Frame, stage: Stage, commands: Commands) -> None:
    """What is seen and found."""
    connect(acts.copy, copy_focused)
    connect(acts.find, parts.finder.open)
    connect(acts.find_next, partial(parts.finder.step, +1))
    connect(acts.find_previous, partial(parts.finder.step, -1))
    connect(acts.search, commands.search)
    connect(acts.read, lambda: stage.set_mode(Mode.READ))
    connect(acts.tokens, lambda: stage.set_mode(Mode.TOKENS))
    connect(acts.sidebar, lambda: parts.show_sidebar(acts.sidebar.isChecked()))
    connect(acts.inspector, lambda: parts.show_inspector(acts.inspector.isChecked()))
    for measure, action in acts.colours.items():
        connect(action, partial(stage.colour_by, measure))
    acts.template.toggled.connect(parts.transcript.set_template_visible)
    acts.pruned.toggled.connect(parts.sidebar.show_pruned)
    connect(acts.prune, parts.sidebar.tree.prune_current)
    connect(acts.uncertain, parts.transcript.next_uncertain)
    connect(acts.disagreement, stage.second.next_disagreement)
