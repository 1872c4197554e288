"""Every word of the window goes through Qt's translators: one that marks what it was given finds none without a mark."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from PySide6.QtCore import QTranslator
from PySide6.QtWidgets import QAbstractButton, QApplication

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import FakeWorkbench
from ui import MainWindow
from ui.inspector.stage_rows import StageName
from ui.model_chip import ModelChip
from ui.setup.pages import SAMPLING
from ui.widgets import IconButton

Play = Callable[[Scene], None]
MARK = "«"
NAMES = {"DRY", "XTC", "‹", "›", "2", "4", "8"}


class Marks(QTranslator):
    """What it translates begins with a mark."""

    def isEmpty(self) -> bool:  # noqa: N802  # Qt's
        return False

    def translate(self, context: str, sourceText: str, disambiguation: str | None = None, n: int = -1) -> str:  # noqa: N803  # Qt's names
        del context, disambiguation, n
        return f"{MARK}{sourceText}"


@pytest.fixture
def marks(app: QApplication) -> Iterator[None]:
    translator = Marks()
    app.installTranslator(translator)
    yield
    app.removeTranslator(translator)


def test_no_word_bypasses_the_translators(marks: None, in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        window.acts.settings.trigger()
        window.popover.open(SAMPLING)
        await until(lambda: bool(window.popover.sampling.options.fields))
        await frames()
        own = [action.text() for menu in window.acts.menus() for action in menu.actions() if not action.isSeparator()]
        tops = window, window.settings
        found = [
            part for top in tops for part in top.findChildren(QAbstractButton) if not isinstance(part, ModelChip | StageName)
        ]
        own += [button.text() for button in found if button.text()]
        own += [button.toolTip() for button in found if isinstance(button, IconButton)]
        own += [field.accessibleName() for field in window.popover.sampling.options.fields.values()]
        boxes, units = window.parts.transcript.tokens.page.boxes, ("tok/s", "nats")
        own += [box.turn.role for box in boxes]
        own += [p.text for box in boxes for p in box.meta.parts(hovered=True) if not p.text.endswith(units)]
        plain = {text for text in own if MARK not in text and any(c.isalpha() for c in text)} - NAMES
        assert plain == set()
        assert len(own) > 150

    in_window(scene)
