"""The menu and its keys: what each entry does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtWidgets import QMenu

from ui.actions import Actions, connect, copy_focused
from ui.desk import Desk
from ui.frame import Frame
from ui.setup.pages import MODEL, SAMPLING
from ui.stage import Stage
from ui.transcript import Mode
from ui.transferring import Transfers
from ui.window.commands import Commands

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
    for kind, action in acts.exports.items():
        connect(action, partial(transfers.ask_export, kind))


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
