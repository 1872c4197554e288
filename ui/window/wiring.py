"""Parts to controller: what each part of the window asks for, and the answers that only it waits for.

What changes for all parts at once goes the other way through `ui.window.stage`.
"""

from __future__ import annotations

from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QWidget

from ui.comparison.model_bar import open_menu
from ui.comparison.stages import SimilarStage
from ui.desk import Desk
from ui.window.commands import Commands
from ui.window.frame import Frame
from ui.window.stage import Stage


def wire_second(desk: Desk, parts: Frame, stage: Stage) -> None:
    """The bar, the menu, the legend and the inspector."""
    second, bar, shown = desk.second, parts.second, stage.second
    second.menu_ready.connect(lambda choices: open_menu(parts.top.model, choices, second.compare))
    second.began.connect(shown.begin)
    second.progressed.connect(bar.show_progress)
    second.compared.connect(shown.show)
    second.failed.connect(lambda words, anyway: bar.say(words, anyway=anyway))
    bar.stopped.connect(second.stop)
    bar.closed.connect(shown.close)
    bar.next_wanted.connect(shown.next_disagreement)
    bar.again_wanted.connect(second.compare_again)
    bar.all_wanted.connect(second.compare_all)
    bar.keep_wanted.connect(second.keep)
    desk.session_shown.connect(shown.leave)
    parts.status.legend.difference_chosen.connect(lambda: shown.colour(difference=True))


def wire_similar(desk: Desk, parts: Frame, stage: SimilarStage) -> None:
    """The panel, the menu, the line under each turn."""
    similar, panel = desk.similar, parts.similar
    parts.transcript.similar_requested.connect(similar.look)
    similar.began.connect(lambda words, pooling, other: panel.begin(words, pooling, other=other))
    similar.progressed.connect(panel.show_progress)
    similar.found.connect(panel.show_found)
    similar.failed.connect(lambda words, needs_model: panel.say(words, needs_model=needs_model))
    similar.left.connect(panel.dismiss)
    panel.pooling_chosen.connect(similar.choose_pooling)
    panel.again_wanted.connect(similar.look_again)
    panel.model_wanted.connect(desk.models.ask_menu)
    panel.chosen.connect(lambda _node_id: parts.compare.dismiss())  # a turn is shown in the conversation
    panel.chosen.connect(desk.tree.go_to)
    panel.closed.connect(stage.close)
    panel.focus_lost.connect(parts.transcript.setFocus)
    desk.tree.turn_shown.connect(parts.transcript.go_to)


def wire_parts(window: QWidget, desk: Desk, parts: Frame, stage: Stage, commands: Commands) -> None:
    """All parts of the frame."""
    _wire_sessions(desk, parts, commands)
    _wire_tree(desk, parts)
    _wire_composer(desk, parts, commands)
    _wire_top(desk, parts, stage, commands)
    _wire_transcript(desk, parts, stage, commands)
    _wire_finder(parts)
    _wire_inspector(window, desk, parts, stage, commands)
    _wire_columns(desk, parts, commands)


def _wire_sessions(desk: Desk, parts: Frame, commands: Commands) -> None:
    panel = parts.sidebar.sessions
    panel.chosen.connect(desk.open)
    panel.renamed.connect(desk.sessions.rename)
    panel.pinned.connect(desk.sessions.pin)
    panel.trashed.connect(commands.trash)
    panel.restored.connect(desk.sessions.restore)
    panel.searched.connect(desk.sessions.search)
    panel.tagged.connect(desk.sessions.tag)
    panel.arranged.connect(desk.sessions.arrange)
    panel.moved.connect(desk.sessions.move)
    panel.folder_wanted.connect(desk.sessions.create_folder)
    panel.folder_renamed.connect(desk.sessions.rename_folder)
    panel.folder_removed.connect(desk.sessions.remove_folder)
    panel.trash_wanted.connect(desk.sessions.show_trash)
    panel.emptied.connect(desk.sessions.empty)


def _wire_tree(desk: Desk, parts: Frame) -> None:
    tree = parts.sidebar.tree
    tree.selected.connect(desk.tree.select)
    tree.prune_wanted.connect(desk.tree.prune)
    tree.compare_wanted.connect(desk.tree.compare)
    desk.tree.compared.connect(parts.show_comparison)
    desk.session_shown.connect(lambda _view: parts.compare.dismiss())


def _wire_composer(desk: Desk, parts: Frame, commands: Commands) -> None:
    composer = parts.composer
    composer.sent.connect(commands.send)
    composer.stopped.connect(desk.answers.stop)
    composer.drafted.connect(desk.drafts.compose)
    composer.settled.connect(desk.drafts.score)
    composer.attach_wanted.connect(desk.drafts.read_file)
    composer.leave_out_wanted.connect(desk.drafts.leave_out)
    composer.larger_wanted.connect(desk.drafts.grow_context)
    composer.new_wanted.connect(commands.new_session)
    composer.pin_wanted.connect(commands.pin_file)
    parts.cards.answered.connect(desk.answers.answer_call)


def _wire_top(desk: Desk, parts: Frame, stage: Stage, commands: Commands) -> None:
    parts.top.mode_chosen.connect(stage.set_mode)
    parts.top.step_wanted.connect(desk.tree.step_variant)
    parts.top.model_chosen.connect(desk.models.choose_model)
    parts.top.backend_chosen.connect(desk.models.choose_backend)
    parts.top.new_button.clicked.connect(commands.new_session)
    parts.status.legend.measure_chosen.connect(stage.colour_by)


def _wire_transcript(desk: Desk, parts: Frame, stage: Stage, commands: Commands) -> None:
    view = parts.transcript
    view.token_pinned.connect(stage.show_pin)
    view.range_selected.connect(stage.show_range)
    view.alternative_chosen.connect(commands.branch)
    view.preview_wanted.connect(desk.draws.ask_preview)
    view.preview_left.connect(desk.draws.drop_preview)
    desk.draws.preview_found.connect(view.show_preview)
    view.variant_requested.connect(desk.tree.select)
    view.edit_requested.connect(commands.edit)
    view.regenerate_requested.connect(commands.regenerate)
    view.repeat_requested.connect(commands.regenerate_exactly)
    view.continue_requested.connect(commands.continue_turn)
    view.text_requested.connect(desk.answers.open_as_text)
    view.model_requested.connect(desk.models.ask_menu)
    parts.status.choose.clicked.connect(lambda _checked=False: desk.models.ask_menu())
    view.copy_requested.connect(commands.copy)
    view.earlier_requested.connect(desk.show_earlier)
    view.link_requested.connect(parts.link.ask)
    parts.link.copy_wanted.connect(commands.copy)
    parts.link.open_wanted.connect(commands.open_link)


def _wire_finder(parts: Frame) -> None:
    parts.transcript.found_changed.connect(parts.finder.show_place)
    parts.finder.wanted.connect(parts.transcript.look_for)
    parts.finder.step_wanted.connect(parts.transcript.find_next)
    parts.finder.closed.connect(parts.transcript.setFocus)


def _wire_inspector(window: QWidget, desk: Desk, parts: Frame, stage: Stage, commands: Commands) -> None:
    inspector = parts.inspector
    inspector.bind(desk)
    inspector.token.alternative_chosen.connect(commands.branch)
    inspector.token.columns_wanted.connect(commands.find_columns_at)
    inspector.token.preview_wanted.connect(parts.transcript.preview)
    inspector.path.token_chosen.connect(stage.pin)
    for tab in (inspector.token, inspector.path, inspector.why):
        tab.empty.token_wanted.connect(parts.transcript.next_uncertain)
        tab.empty.message_wanted.connect(parts.composer.setFocus)
    for number in range(1, 10):
        # Text fields keep their digits: they claim printable keys before shortcuts do.
        key = QShortcut(QKeySequence(str(number)), window)
        key.activated.connect(lambda number=number: inspector.token.alternatives.press(number))


def _wire_columns(desk: Desk, parts: Frame, commands: Commands) -> None:
    parts.columns.kept.connect(commands.keep_column)
    parts.columns.stopped.connect(desk.answers.stop)
    parts.columns.closed.connect(desk.draws.close_columns)
