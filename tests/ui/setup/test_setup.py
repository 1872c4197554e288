"""The popover under the model's name, by mouse and keys: each field shows the current value, and requests changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QCheckBox, QLabel, QLineEdit, QPushButton, QWidget

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import AnswerFormat, FormatKind, Guess, MainWindow, SessionChanged
from ui.controller.setup import FORM, MODEL, SAMPLING, SYSTEM, TOOLS
from ui.setup.option_names import text_of, value_of
from ui.setup.popover import SetupPopover

Play = Callable[[Scene], None]
LEFT = Qt.MouseButton.LeftButton


def focused() -> QWidget:
    widget = QApplication.focusWidget()
    assert widget is not None
    return widget


async def opened(window: MainWindow, page: int = MODEL) -> SetupPopover:
    """Opens the popover by its shortcut, then a page by a click on its tab."""
    QTest.keyClick(window, Qt.Key.Key_M, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
    assert window.popover.isVisible()
    QTest.mouseClick(window.popover.tabs[page], LEFT)
    await until(lambda: window.popover.model.name.text() != "")
    return window.popover


def retype(field: QLineEdit, text: str) -> None:
    field.setFocus()
    field.selectAll()
    QTest.keyClicks(field, text)
    QTest.keyClick(field, Qt.Key.Key_Return)


def test_the_popover_opens_and_closes_by_mouse_and_keys(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        popover = await opened(window)
        assert popover.model.facts["fingerprint"].text() == "3f2a9c51d07b"
        assert popover.model.facts["KV per token"].text() == "46 kB"
        assert "bfloat16" in popover.model.warnings.text()
        # the key again, Escape, and a click beside it close it
        QTest.keyClick(window, Qt.Key.Key_M, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
        assert not popover.isVisible()
        QTest.keyClick(window, Qt.Key.Key_P, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
        assert popover.isVisible()
        assert popover.tabs[SAMPLING].isChecked()
        QTest.keyClick(focused(), Qt.Key.Key_Escape)
        assert not popover.isVisible()
        assert window.parts.composer.field.hasFocus()  # the focus is where it was
        QTest.mouseClick(window.parts.composer.setup_button, LEFT)
        assert popover.isVisible()
        QTest.mouseClick(window.parts.composer.field.viewport(), LEFT)
        assert not popover.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_the_popover_stays_inside_a_narrow_window(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        popover = await opened(window)
        for size in ((900, 700), (560, 420), (1360, 860)):
            window.resize(*size)
            await until(lambda: window.parts.rect().contains(popover.geometry()))
            area = popover.sampling
            assert area.minimumSizeHint().width() <= popover.width()

    in_window(scene)


@pytest.mark.slow
def test_every_part_can_be_reached_by_tab_and_has_a_name(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        popover = await opened(window)
        for page in (MODEL, SYSTEM, SAMPLING, FORM, TOOLS):
            popover.show_page(page)
            await frames(1)
            popover.tabs[page].setFocus()
            seen: list[QWidget] = []
            for _ in range(60):
                QTest.keyClick(focused(), Qt.Key.Key_Tab)
                now = focused()
                if not popover.isAncestorOf(now) or now in seen:
                    break
                seen.append(now)
            wanted = [w for w in popover.findChildren(QWidget) if w.isVisible() and w.isEnabled() and _takes_keys(w)]
            unreached = [w for w in wanted if w not in seen and w is not popover.tabs[page]]
            assert not unreached, unreached
            nameless = [w for w in wanted if not (w.accessibleName() or (isinstance(w, QPushButton) and w.text()))]
            assert not [w for w in nameless if not isinstance(w, QCheckBox)], nameless

    in_window(scene)


def _takes_keys(widget: QWidget) -> bool:
    proxy = widget.focusProxy()
    parent = widget.parentWidget()
    inner = parent is not None and parent.inherits("QAbstractSpinBox")
    return bool(widget.focusPolicy() & Qt.FocusPolicy.TabFocus) and proxy is None and not inner


@pytest.mark.slow
def test_an_option_is_set_refused_and_reset_to_the_preset(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        options = (await opened(window, SAMPLING)).sampling.options
        await until(lambda: "temperature" in options.fields)
        field = options.fields["temperature"]
        assert (field.text(), field.placeholderText(), options.sources["temperature"].text()) == ("", "0.8", "preset")
        assert [options.fields[name].placeholderText() for name in ("seed", "stop", "banned_tokens")] == [
            "fresh",
            "none",
            "none",
        ]
        retype(field, "0.2")
        await until(lambda: options.sources["temperature"].text() == "session")
        assert bench.asked("set_option") == [(TRIP, "temperature", 0.2)]
        # a refusal is shown inside the popover, and the field shows the current value
        bench.refusal = "temperature must be a number, 0 or more, not -1"
        retype(field, "-1")
        await until(lambda: window.popover.notice.words.startswith("temperature must"))
        await until(lambda: field.text() == "0.2")
        assert window.parts.composer.notice.words == ""
        QTest.mouseClick(options.clears["temperature"], LEFT)
        await until(lambda: options.sources["temperature"].text() == "preset")
        assert field.text() == ""
        # Escape discards unfinished text, without closing the popover
        QTest.keyClicks(field, "9")
        QTest.keyClick(field, Qt.Key.Key_Escape)
        assert (field.text(), window.popover.isVisible()) == ("", True)

    in_window(scene)


@pytest.mark.slow
def test_a_slider_sets_its_option_after_a_pause_and_follows_the_field(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        options = (await opened(window, SAMPLING)).sampling.options
        await until(lambda: "temperature" in options.sliders)
        slider, field = options.sliders["temperature"], options.fields["temperature"]
        assert slider.setting == 0.8
        slider.setFocus()
        for _ in range(3):
            QTest.keyClick(slider, Qt.Key.Key_PageUp)
        moved = slider.setting
        assert (moved > 0.8, float(field.text()), bench.asked("set_option")) == (True, moved, [])
        bench.emit(SessionChanged(bench.views[TRIP]))  # an update does not move the handle back
        await until(lambda: bench.asked("set_option") == [(TRIP, "temperature", moved)])
        await until(lambda: options.sources["temperature"].text() == "session")
        retype(field, "0.2")
        await until(lambda: slider.setting == 0.2)
        QTest.mouseClick(options.clears["temperature"], LEFT)
        await until(lambda: (slider.setting, field.text()) == (0.8, ""))
        # a move just before another session is shown belongs to the previous session
        QTest.keyClick(slider, Qt.Key.Key_PageUp)
        moved = slider.setting
        window.controller.open(3)
        await until(lambda: bench.asked("set_option")[-1:] == [(TRIP, "temperature", moved)])
        assert "temperature" in {name for _, name, _ in bench.asked("set_option")}
        assert all(session == TRIP for session, _, _ in bench.asked("set_option"))

    in_window(scene)


def test_typed_values_are_parsed() -> None:
    assert [value_of("temperature", t) for t in ("", "1", "0.5", "\N{MINUS SIGN}1", "hot")] == [None, 1, 0.5, -1, "hot"]
    assert value_of("stop", '"\\n\\n", "User:"') == ["\n\n", "User:"]
    assert value_of("stop", "END") == ["END"]
    for stops in (["\n\n", "User:"], ['"'], ["日本", "🙂"]):
        assert value_of("stop", text_of("stop", stops)) == stops


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("logit_bias", "36413: -5, 12: 2.5", {"36413": -5, "12": 2.5}),
        ("logit_bias", "12", {"12": ""}),
        ("banned_tokens", "36413, 12", [36413, 12]),
        ("banned_tokens", "Paris", ["Paris"]),
        ("banned_tokens", '" the", 12, "12", "a, \\"b\\": c", "\\n"', [" the", 12, "12", 'a, "b": c', "\n"]),
        ("logit_bias", '" the": -5, 12: 2, "12": 1, "a, b: c": -100', {'" the"': -5, "12": 2, '"12"': 1, '"a, b: c"': -100}),
        ("logit_bias", '"open: -5', {"open": -5}),
        ("order", "bias → temperature → top_k", ["bias", "temperature", "top_k"]),
        ("order", "temperature > top_p", ["temperature", "top_p"]),
        ("dry_breakers", '"\\n", 13', ["\n", 13]),
        ("penalty_window", "64", 64),
    ],
)
def test_lists_of_ids_biases_and_stages_are_parsed_and_formatted_again(name: str, written: str, value: object) -> None:
    assert value_of(name, written) == value
    assert value_of(name, text_of(name, value)) == value


def test_rare_options_are_folded_until_they_are_unfolded_or_set(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        options = (await opened(window, SAMPLING)).sampling.options
        await until(lambda: "logit_bias" in options.fields)
        field, order = options.fields["logit_bias"], options.fields["order"]
        assert (field.isVisible(), order.isVisible(), options.fields["temperature"].isVisible()) == (False, False, True)
        options.more.setFocus()
        QTest.keyClick(options.more, Qt.Key.Key_Space)
        assert (field.isVisible(), order.isVisible()) == (True, True)
        assert order.placeholderText() == "bias → penalties → temperature"
        assert options.sources["order"].text() == "default"
        retype(field, "36413: -5")
        await until(lambda: options.sources["logit_bias"].text() == "session")
        assert bench.asked("set_option") == [(TRIP, "logit_bias", {"36413": -5})]
        # folded again, options set in the session stay visible
        QTest.keyClick(options.more, Qt.Key.Key_Space)
        assert (field.isVisible(), order.isVisible()) == (True, False)
        assert field.text() == "36413: -5"
        QTest.mouseClick(options.clears["logit_bias"], LEFT)
        await until(lambda: not field.isVisible())

    in_window(scene)


def test_presets_are_chosen_saved_and_deleted(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = (await opened(window, SAMPLING)).sampling
        await until(lambda: page.presets.count() == 4)
        assert [page.presets.itemText(i) for i in range(4)] == ["default (greedy)", "Elsewise's own", "greedy", "mine"]
        assert not page.delete_button.isEnabled()
        page.presets.setFocus()
        QTest.keyClick(page.presets, Qt.Key.Key_Down)
        await until(lambda: bench.asked("choose_preset") == [(TRIP, "Elsewise's own")])
        QTest.keyClick(page.presets, Qt.Key.Key_Down)
        QTest.keyClick(page.presets, Qt.Key.Key_Down)
        await until(lambda: bench.asked("choose_preset")[-1:] == [(TRIP, "mine")])
        await until(page.delete_button.isEnabled)
        assert not page.save_button.isEnabled()
        retype(page.preset_name, "rainy days")
        await until(lambda: page.presets.currentText() == "rainy days")
        assert bench.asked("save_preset") == [(TRIP, "rainy days")]
        QTest.mouseClick(page.delete_button, LEFT)
        await until(lambda: page.presets.currentText() == "default (greedy)")
        assert bench.asked("delete_preset") == [(TRIP, "rainy days")]

    in_window(scene)


def test_a_draft_of_the_system_prompt_survives_updates_and_changes_of_session(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = (await opened(window, SYSTEM)).system
        assert not page.system_button.isEnabled()
        QTest.keyClicks(page.system, "Answer in verse")
        bench.emit(SessionChanged(bench.views[TRIP]))
        await frames()
        assert page.system.toPlainText() == "Answer in verse"
        QTest.mouseClick(page.system_button, LEFT)
        await until(lambda: bench.asked("set_system") == [(TRIP, "Answer in verse")])
        await until(lambda: not page.system_button.isEnabled())
        # another session has its own, and unfinished text stays with its session: a prompt, a format, tools
        form, tools = window.popover.form, window.popover.tools
        QTest.keyClicks(page.system, "Briefly: ")
        window.popover.show_page(FORM)
        QTest.mouseClick(form.kinds.buttons[1], LEFT)
        QTest.keyClicks(form.source, "{}")
        QTest.mouseClick(form.kinds.buttons[2], LEFT)
        QTest.keyClicks(form.source, "(yes")
        QTest.keyClicks(tools.source, "[{")
        fields = page.system, form.source, tools.source
        half = [field.toPlainText() for field in fields]
        window.controller.open(3)
        await until(lambda: [field.toPlainText() for field in fields] == ["", "", ""])
        assert form.written.kind is FormatKind.FREE
        window.controller.open(TRIP)
        await until(lambda: [field.toPlainText() for field in fields] == half)
        assert page.system_button.isEnabled()
        assert form.written == AnswerFormat(FormatKind.REGEX, "(yes")
        await until(lambda: "unclosed group" in form.state.text())
        QTest.mouseClick(form.kinds.buttons[1], LEFT)
        assert form.source.toPlainText() == "{}"

    in_window(scene)


@pytest.mark.slow
def test_an_output_format_is_checked_while_it_is_typed(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = (await opened(window, FORM)).form
        assert not page.source.isVisible()
        assert page.kinds.buttons[0].accessibleName() == "Output format: free text"
        QTest.mouseClick(page.kinds.buttons[2], LEFT)
        QTest.keyClicks(page.source, "(a")
        assert page.state.text() == "checking…"
        await until(lambda: "unclosed group" in page.state.text())
        assert not page.use_button.isEnabled()
        # several keys, but one check
        assert len(bench.asked("check_format")) == 1
        # the window stays responsive during a check, and the result of an older check is ignored
        bench.slow_checks = asyncio.Event()
        QTest.keyClicks(page.source, "x")
        await until(lambda: len(bench.asked("check_format")) == 2)
        QTest.keyClicks(page.source, ")")
        assert page.state.text() == "checking…"
        bench.slow_checks.set()
        await until(lambda: page.state.text() == "valid")
        QTest.mouseClick(page.use_button, LEFT)
        wanted = AnswerFormat(FormatKind.REGEX, "(ax)")
        await until(lambda: bench.asked("set_format") == [(TRIP, wanted)])
        await until(lambda: not page.use_button.isEnabled())
        # one click returns to free text, and the typed pattern is kept
        QTest.mouseClick(page.kinds.buttons[0], LEFT)
        await until(lambda: bench.asked("set_format")[-1] == (TRIP, AnswerFormat()))
        QTest.mouseClick(page.kinds.buttons[2], LEFT)
        assert page.source.toPlainText() == "(ax)"

    in_window(scene)


def test_speculation_is_set_in_the_popover(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = (await opened(window)).model
        assert not page.guess.buttons[2].isEnabled()
        QTest.mouseClick(page.guess.buttons[1], LEFT)
        await until(lambda: bench.asked("set_guess") == [(TRIP, Guess.PROMPT_LOOKUP)])
        assert bench.loaded is not None
        bench.loaded = replace(bench.loaded, draft="tiny")
        window.setup.ask()
        await until(page.guess.buttons[2].isEnabled)

    in_window(scene)


def test_without_a_model_the_popover_reports_it_and_offers_a_choice(in_window: Play, bench: FakeWorkbench) -> None:
    bench.loaded = None

    async def scene(window: MainWindow) -> None:
        page = (await opened(window)).model
        assert page.name.text() == "No model is loaded"
        assert page.change_button.isVisible()
        assert not page.warnings.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_tools_are_checked_and_offered(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = (await opened(window, TOOLS)).tools
        QTest.keyClicks(page.source, "[")
        await until(lambda: page.state.text() == "the definitions are no JSON")
        assert not page.offer_button.isEnabled()
        page.source.clear()
        QTest.keyClicks(page.source, '[{"name": "weather"}]')
        await until(lambda: page.state.text() == "defines weather")
        QTest.mouseClick(page.offer_button, LEFT)
        await until(lambda: bench.asked("set_tools") == [(TRIP, '[{"name": "weather"}]')])

    in_window(scene)


def test_tokens_are_written_as_text_if_the_text_is_readable_and_unique() -> None:
    says = {5: b" rain", 6: b"\n", 7: b"\xf0\x9f", 8: "\N{RIGHT-TO-LEFT OVERRIDE}".encode(), 9: b'"', 10: b" rain"}

    def bytes_of(token: int) -> bytes:
        return says.get(token, b"")

    assert text_of("banned_tokens", [5, 6, 7, 8, 9, 10, 11], bytes_of) == r'" rain", "\n", 7, 8, "\"", 11'
    assert text_of("logit_bias", {"5": -5, "7": 2.5}, bytes_of) == '" rain": -5, 7: 2.5'
    assert value_of("logit_bias", text_of("logit_bias", {"5": -5}, bytes_of)) == {'" rain"': -5}


@pytest.mark.slow
def test_a_bias_is_typed_as_text_and_shown_as_text(in_window: Play, bench: FakeWorkbench) -> None:
    rain = bench.vocabulary.id_of(" rain")

    async def scene(window: MainWindow) -> None:
        options = (await opened(window, SAMPLING)).sampling.options
        await until(lambda: "logit_bias" in options.fields)
        options.more.click()
        retype(options.fields["logit_bias"], '" rain": -5')
        await until(lambda: bench.asked("set_option") == [(TRIP, "logit_bias", {'" rain"': -5})])
        # the stored values are ids, which are shown as their text
        await window.controller.workbench.setup.set_option(TRIP, "logit_bias", {str(rain): -5})
        window.setup.ask()
        await until(lambda: options.fields["logit_bias"].text() == '" rain": -5')

    in_window(scene)


def test_values_too_long_for_a_field_are_in_its_tooltip(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        options = (await opened(window, SAMPLING)).sampling.options
        await until(lambda: "order" in options.fields)
        assert options.fields["order"].toolTip().endswith("does nothing\nbias → penalties → temperature")
        assert "\n" not in options.fields["temperature"].toolTip()  # short values fit
        retype(options.fields["stop"], '"' + "a long text " * 4 + '"')
        await until(lambda: options.fields["stop"].toolTip().endswith('\n"' + "a long text " * 4 + '"'))

    in_window(scene)


def test_the_sampling_page_states_when_changes_take_effect(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = (await opened(window, SAMPLING)).sampling
        assert "Changes apply from the next answer" in [label.text() for label in page.findChildren(QLabel)]

    in_window(scene)


def test_text_that_is_no_number_is_refused_with_the_name_of_the_option(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        options = (await opened(window, SAMPLING)).sampling.options
        await until(lambda: "temperature" in options.fields)
        retype(options.fields["temperature"], "abc")
        assert window.popover.notice.words == "Temperature must be a number"
        assert options.fields["temperature"].text() == ""
        assert bench.asked("set_option") == []

    in_window(scene)
