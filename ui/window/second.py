"""A second model beside the first: what its parts ask for, and what is shown then."""

from __future__ import annotations

from ui.desk import Desk
from ui.frame import Frame
from ui.second.menu import open_menu
from ui.stage import Stage


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
