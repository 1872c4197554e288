"""Parts to controller: what each part of the window asks for, and the answers that only it waits for.

What changes for all parts at once goes the other way through `ui.window.stage`.
"""

from __future__ import annotations

from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QWidget

from ui.comparison.model_bar import open_menu
from ui.comparison.stages import SimilarStage
from ui.controller import Controller
from ui.window.commands import Commands
from ui.window.frame import Frame
from ui.window.stage import Stage


def wire_second(controller: Controller, parts: Frame, stage: Stage) -> None:
    """The bar, the menu, the legend and the inspector."""
    second, bar, shown = controller.second, parts.second, stage.second
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
    controller.session_shown.connect(shown.leave)
    parts.status.legend.difference_chosen.connect(lambda: shown.colour(difference=True))


def wire_similar(controller: Controller, parts: Frame, stage: SimilarStage) -> None:
    """The panel, the menu, the line under each turn."""
    similar, panel = controller.similar, parts.similar
    parts.transcript.similar_requested.connect(similar.look)
    similar.began.connect(lambda words, pooling, other: panel.begin(words, pooling, other=other))
    similar.progressed.connect(panel.show_progress)
    similar.found.connect(panel.show_found)
    similar.failed.connect(lambda words, needs_model: panel.say(words, needs_model=needs_model))
    similar.left.connect(panel.dismiss)
    panel.pooling_chosen.connect(similar.choose_pooling)
    panel.again_wanted.connect(similar.look_again)
    panel.model_wanted.connect(controller.models.ask_menu)
    panel.chosen.connect(lambda _node_id: parts.compare.dismiss())  # a turn is shown in the conversation
    panel.chosen.connect(controller.tree.go_to)
    panel.closed.connect(stage.close)
    panel.focus_lost.connect(parts.transcript.setFocus)
    controller.tree.turn_shown.connect(parts.transcript.go_to)


def wire_parts(window: QWidget, controller: Controller, parts: Frame, stage: Stage, commands: Commands) -> None:
    """All parts of the frame."""
    _wire_sessions(controller, parts, commands)
    _wire_tree(controller, parts)
    _wire_composer(controller, parts, commands)
    _wire_top(controller, parts, stage, commands)
    _wire_transcript(controller, parts, stage, commands)
    _wire_finder(parts)
    _wire_inspector(window, controller, parts, stage, commands)
    _wire_columns(controller, parts, commands)


def _wire_sessions(controller: Controller, parts: Frame, commands: Commands) -> None:
    panel = parts.sidebar.sessions
    panel.chosen.connect(controller.open)
    panel.renamed.connect(controller.sessions.rename)
    panel.pinned.connect(controller.sessions.pin)
    panel.trashed.connect(commands.trash)
    panel.restored.connect(controller.sessions.restore)
    panel.searched.connect(controller.sessions.search)
    panel.tagged.connect(controller.sessions.tag)
    panel.arranged.connect(controller.sessions.arrange)
    panel.moved.connect(controller.sessions.move)
    panel.folder_wanted.connect(controller.sessions.create_folder)
    panel.folder_renamed.connect(controller.sessions.rename_folder)
    panel.folder_removed.connect(controller.sessions.remove_folder)
    panel.trash_wanted.connect(controller.sessions.show_trash)
    panel.emptied.connect(controller.sessions.empty)


def _wire_tree(controller: Controller, parts: Frame) -> None:
    tree = parts.sidebar.tree
    tree.selected.connect(controller.tree.select)
    tree.prune_wanted.connect(controller.tree.prune)
    tree.compare_wanted.connect(controller.tree.compare)
    controller.tree.compared.connect(parts.show_comparison)
    controller.session_shown.connect(lambda _view: parts.compare.dismiss())


def _wire_composer(controller: Controller, parts: Frame, commands: Commands) -> None:
    composer = parts.composer
    composer.sent.connect(commands.send)
    composer.stopped.connect(controller.answers.stop)
    composer.drafted.connect(controller.drafts.compose)
    composer.settled.connect(controller.drafts.score)
    composer.attach_wanted.connect(controller.drafts.read_file)
    composer.leave_out_wanted.connect(controller.drafts.leave_out)
    composer.larger_wanted.connect(controller.drafts.grow_context)
    composer.new_wanted.connect(commands.new_session)
    composer.pin_wanted.connect(commands.pin_file)
    parts.cards.answered.connect(controller.answers.answer_call)


def _wire_top(controller: Controller, parts: Frame, stage: Stage, commands: Commands) -> None:
    parts.top.mode_chosen.connect(stage.set_mode)
    parts.top.step_wanted.connect(controller.tree.step_variant)
    parts.top.model_chosen.connect(controller.models.choose_model)
    parts.top.backend_chosen.connect(controller.models.choose_backend)
    parts.top.new_button.clicked.connect(commands.new_session)
    parts.status.legend.measure_chosen.connect(stage.colour_by)


def _wire_transcript(controller: Controller, parts: Frame, stage: Stage, commands: Commands) -> None:
    view = parts.transcript
    view.token_pinned.connect(stage.show_pin)
    view.range_selected.connect(stage.show_range)
    view.alternative_chosen.connect(commands.branch)
    view.preview_wanted.connect(controller.draws.ask_preview)
    view.preview_left.connect(controller.draws.drop_preview)
    controller.draws.preview_found.connect(view.show_preview)
    view.variant_requested.connect(controller.tree.select)
    view.edit_requested.connect(commands.edit)
    view.regenerate_requested.connect(commands.regenerate)
    view.repeat_requested.connect(commands.regenerate_exactly)
    view.continue_requested.connect(commands.continue_turn)
    view.text_requested.connect(controller.answers.open_as_text)
    view.model_requested.connect(controller.models.ask_menu)
    parts.status.choose.clicked.connect(lambda _checked=False: controller.models.ask_menu())
    view.copy_requested.connect(commands.copy)
    view.earlier_requested.connect(controller.show_earlier)
    view.link_requested.connect(parts.link.ask)
    parts.link.copy_wanted.connect(commands.copy)
    parts.link.open_wanted.connect(commands.open_link)


def _wire_finder(parts: Frame) -> None:
    parts.transcript.found_changed.connect(parts.finder.show_place)
    parts.finder.wanted.connect(parts.transcript.look_for)
    parts.finder.step_wanted.connect(parts.transcript.find_next)
    parts.finder.closed.connect(parts.transcript.setFocus)


def _wire_inspector(window: QWidget, controller: Controller, parts: Frame, stage: Stage, commands: Commands) -> None:
    inspector = parts.inspector
    inspector.bind(controller)
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


def _wire_columns(controller: Controller, parts: Frame, commands: Commands) -> None:
    parts.columns.kept.connect(commands.keep_column)
    parts.columns.stopped.connect(controller.answers.stop)
    parts.columns.closed.connect(controller.draws.close_columns)
