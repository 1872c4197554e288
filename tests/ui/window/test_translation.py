"""Every text of the window goes through Qt's translators: with a translator that marks its output, no text lacks the mark.

The strings in the code are checked in `tests/app/test_translations.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from PySide6.QtCore import QTranslator
from PySide6.QtWidgets import QAbstractButton, QApplication, QComboBox, QWidget

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import FakeWorkbench
from tests.ui.visits import prepare, visit
from ui import MainWindow
from ui.controller.setup import SAMPLING
from ui.inspector.stage_rows import StageName
from ui.widgets.labels import IconButton
from ui.window.topbar import ModelChip

Play = Callable[[Scene], None]
MARK = "«"
SAYS = ("text", "placeholderText", "toolTip", "accessibleName", "accessibleDescription", "windowTitle")
# Numbers and their units; names of sessions, models and their authors; tokens; text set as code.
CONTENT = re.compile(
    r"[\d\W]+((tok/s|nats|bits|[kMG]?B)( · p [\d\We]+)?)?|u = [.\d]+|A spring trip|\u200b?rainy ending|mine|/data/elsewise"
    r"|SmolLM2.*|Qwen3.*|Llama.*|org/.*|trying things out|thinking|long answers|hf|mlx|cpu|[a-z]*float\d+|int\d|chatml|tiny"
    r"|hf, cpu, float32|[0-9a-f]{12}|bfloat16 would be faster on this machine|␣city|.*(in April\?|<b>).*|[\d,]+ .*poet × 0.5"
    r"|bias → penalties → temperature|\[\{.*|[AB] Paris| Paris in spring.*| Kyoto for.*|DRY|XTC",
    re.DOTALL,
)
WORKBENCHS = {
    "preset",
    "default",
    "model",
    "reached the length limit",
    "loading smollm2",
}  # which the workbench translates itself
NAMES = {"DRY", "XTC", "Elsewise", "‹", "›", "2", "4", "8"}


class Marks(QTranslator):
    """Translates each text to itself with a mark in front."""

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


@pytest.mark.slow
def test_no_text_of_menus_buttons_and_turns_bypasses_the_translators(
    marks: None, in_window: Play, bench: FakeWorkbench
) -> None:
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


def seen(top: QWidget) -> Iterator[str]:
    """Every text of the visible widgets: labels, accessible texts and tooltips."""
    for part in [top, *top.findChildren(QWidget)]:
        if part.isVisible() and part.window() is top.window():
            texts = [getattr(part, says)() for says in SAYS if callable(getattr(part, says, None))]
            yield from (text for text in texts if isinstance(text, str))
            if isinstance(part, QComboBox):
                yield from map(part.itemText, range(part.count()))
            yield from (text for action in part.actions() for text in (action.text(), action.toolTip()))


@pytest.mark.slow
def test_no_visible_text_of_any_part_bypasses_the_translators(marks: None, in_window: Play, bench: FakeWorkbench) -> None:
    prepare(bench)
    found: set[str] = set()

    async def look(part: QWidget, name: str) -> None:
        del name
        found.update(seen(part))

    in_window(lambda window: visit(window, bench, look))
    plain = {text for text in found if text and MARK not in text and not CONTENT.fullmatch(text)} - NAMES
    assert plain == WORKBENCHS
    assert sum(MARK in text for text in found) > 300
