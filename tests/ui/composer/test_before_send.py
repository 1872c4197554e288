"""The message field before Send: the meter, files, the surprise of the draft, and room in the context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QToolTip
from pytestqt.qtbot import QtBot

from tests.ui.conftest import Scene, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish
from ui import Composition, ContextPart, MainWindow, PartKind, Refusal, SessionChanged, TextFile, TurnStatus
from ui.composer.draft_field import DraftField
from ui.composer.file_chips import FileChips
from ui.transcript import Mode
from ui.widgets.labels import plain_tooltip

Play = Callable[[Scene], None]
LEFT = Qt.MouseButton.LeftButton
PARTS = (
    ContextPart(PartKind.SYSTEM, 20, 20),
    ContextPart(PartKind.FILES, 0, 0),
    ContextPart(PartKind.HISTORY, 3000, 2900),
    ContextPart(PartKind.DRAFT, 12, 0),
)


def seen(field: DraftField) -> QImage:
    """The field as painted in its window."""
    port, window = field.viewport(), field.window()
    return window.grab(QRect(port.mapTo(window, QPoint()), port.size())).toImage()


def coloured(field: DraftField) -> list[tuple[str, int]]:
    """The coloured pieces of the field on the screen, with their step."""
    picture = seen(field)
    ground = picture.pixelColor(picture.width() - 1, 4)
    found, cursor = [], field.textCursor()
    for text, step in field.colours.spans:
        cursor.setPosition(len(field.toPlainText()[: field.toPlainText().index(text)].encode("utf-16-le")) // 2)
        if picture.pixelColor(field.cursorRect(cursor).x() + 4, 2) != ground:
            found.append((text, step))
    return found


def counting(bench: FakeWorkbench, composition: Composition) -> None:
    async def compose(session_id: int, text: str, replaces: int | None = None, files: Sequence[str] = ()) -> Composition:
        bench.calls.append(("compose", session_id, text))
        return composition

    bench.drafts.compose = compose  # type: ignore[method-assign]  # the fake returns the composition of the test


def test_the_meter_opens_to_its_parts(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    counting(bench, Composition(12, None, 3032, 8192, parts=PARTS, new_tokens=112))

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        QTest.keyClicks(composer.field, "Go on")
        await until(lambda: composer.meter.cost.text().startswith("12 tokens"))
        assert not composer.meter.panel.isVisible()
        QTest.mouseClick(composer.meter.context, LEFT)
        assert composer.meter.panel.isVisible()
        panel = composer.meter.panel
        assert [panel.tokens[kind].text() for kind in PartKind] == ["20", "0", "3,000", "12"]
        assert [panel.states[kind].text() for kind in PartKind] == ["reused", "", "2,900 reused, 100 to compute", "to compute"]
        assert panel.total.text() == "112 of 3,032 tokens to compute before the answer, 2,920 reused"
        # by key as well
        composer.meter.context.setFocus()
        QTest.keyClick(composer.meter.context, Qt.Key.Key_Space)
        assert not panel.isVisible()
        QTest.keyClick(composer.meter.context, Qt.Key.Key_Space)
        assert panel.isVisible()
        QTest.keyClick(composer.field, Qt.Key.Key_Escape)
        assert not panel.isVisible()

    in_window(scene)


def test_a_chip_does_not_cut_off_its_number_beside_a_long_name(app: QApplication, qtbot: QtBot) -> None:
    chips = FileChips()
    qtbot.addWidget(chips)
    chips.show_files([TextFile("a very long name of a report about lighthouses.md", "text")])
    chips.show_tokens([12_345])
    chips.resize(440, 40)
    chips.show()
    qtbot.waitExposed(chips)
    (chip,) = chips.chips
    assert chip.size_label.width() >= chip.size_label.sizeHint().width()


@pytest.mark.slow
def test_a_draft_is_scored_after_a_pause_in_typing_and_not_after_send(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        QTest.keyClicks(composer.field, "two words")
        await until(lambda: "2 tokens, 3.1 bits each" in composer.meter.cost.text())
        assert bench.asked("score_draft") == [(TRIP, "two words")]
        # sending cancels a running scoring
        bench.slow_checks = asyncio.Event()
        QTest.keyClicks(composer.field, " more")
        await until(lambda: len(bench.asked("score_draft")) == 2)
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: composer.draft == "" and not window.controller.running)
        bench.slow_checks.set()
        await asyncio.sleep(0.05)
        assert "bits" not in composer.meter.cost.text()
        # and prevents one that has not started
        bench.slow_checks = None
        QTest.keyClicks(composer.field, "x")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: composer.draft == "" and not window.controller.running)
        await asyncio.sleep(0.8)
        assert len(bench.asked("score_draft")) == 2
        # the reason for missing colours is shown after the count

        async def refused(*_args: object) -> None:
            raise Refusal("not coloured")

        bench.drafts.score = refused  # type: ignore[assignment,method-assign]
        QTest.keyClicks(composer.field, "two words")
        await until(lambda: composer.meter.cost.text() == "2 tokens, not coloured")

    in_window(scene)


def test_attaching_more_text_than_any_context_holds_is_refused(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    files = [TextFile(f"part {number}.txt", "a word " * 140_000) for number in range(3)]

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        for file in files:
            composer.attach(TRIP, file)
        assert composer.chips.files == (*files[:2],)
        assert composer.notice.words.startswith("part 2.txt cannot go with them")
        composer.chips.show_files([])
        composer.attach(TRIP, files[2])
        assert composer.chips.files == (files[2],)
        assert composer.send_button.isEnabled()  # without any typed text
        composer.chips.show_files([])
        assert not composer.send_button.isEnabled()

    in_window(scene)


def test_a_draft_is_coloured_once_the_running_answer_has_ended(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    bench.surprises = {"rain": 9.0}
    gate = bench.gate = asyncio.Semaphore(0)

    async def scene(window: MainWindow) -> None:
        composer, colours = window.parts.composer, window.parts.composer.field.colours
        # given a draft typed while the model answers
        QTest.keyClicks(composer.field, "Go on")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: window.controller.running and composer.draft == "")
        QTest.keyClicks(composer.field, "rain")
        await until(lambda: bench.asked("compose")[-1:] == [(TRIP, "rain")])
        await asyncio.sleep(0.8)
        assert colours.spans == []
        # when the answer has ended
        for _ in bench.answer:
            gate.release()
        await until(lambda: colours.spans == [("rain", 5)])
        # and after another path it has another surprise
        bench.surprises = {"rain": 1.0}
        QTest.keyClick(window, Qt.Key.Key_BracketLeft, Qt.KeyboardModifier.ControlModifier)
        await until(lambda: colours.spans == [("rain", 1)])

    in_window(scene)


@pytest.mark.slow
def test_a_draft_is_coloured_after_a_pause_and_edits_remove_only_later_colours(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    bench.surprises = {"Now": 0.1, "🎉": 0.1, "it": 1.0, "rain": 9.0, "there": 0.1}

    async def scene(window: MainWindow) -> None:
        composer, colours = window.parts.composer, window.parts.composer.field.colours
        QTest.keyClicks(composer.field, "Now ")
        composer.field.insertPlainText("🎉")  # of two QChars
        QTest.keyClicks(composer.field, " it rain there")
        await until(lambda: colours.spans == [(" it", 1), (" rain", 5)])
        assert len(coloured(composer.field)) == 2
        bench.surprises = dict.fromkeys(bench.surprises, 4.0)
        composer.tell_draft()
        await until(lambda: len(colours.spans) == 5)
        picture, cursor = seen(composer.field), composer.field.textCursor()
        spans = set[str]()
        for text, _ in colours.spans[1:]:  # each starts with a space
            cursor.setPosition(composer.draft.index(text) + (text != " 🎉"))
            left = composer.field.cursorRect(cursor).x()
            spans |= {picture.pixelColor(left + x, 9).name() for x in (0, 1, 2)}
        assert len(spans) == 1  # no line between adjacent spans
        corner, inside, ground = (picture.pixelColor(*at).lightness() for at in ((0, 0), (0, 9), (picture.width() - 1, 9)))
        assert abs(corner - ground) < 3 < abs(inside - ground)  # its corners are round
        bench.surprises = {"Now": 0.1, "🎉": 0.1, "it": 1.0, "rain": 9.0, "there": 0.1}
        composer.tell_draft()
        await until(lambda: colours.spans == [(" it", 1), (" rain", 5)])
        # colours are no edits: they are not sent or undone, and typing keeps the colours before the cursor
        assert composer.draft == "Now 🎉 it rain there"
        QTest.keyClicks(composer.field, " x")
        assert colours.spans == [(" it", 1), (" rain", 5)]
        cursor = composer.field.textCursor()
        cursor.setPosition(len("Now 🎉 it r") + 1)
        composer.field.setTextCursor(cursor)
        QTest.keyClicks(composer.field, "e")
        assert colours.spans == [(" it", 1)]
        # in Read there are none
        window.presenter.set_mode(Mode.READ)
        assert not coloured(composer.field)
        window.presenter.set_mode(Mode.TOKENS)
        assert len(coloured(composer.field)) == 1
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: composer.draft == "")
        assert not colours.spans

    in_window(scene)


@pytest.mark.slow
def test_a_file_is_sent_with_the_message_or_pinned(in_window: Play, bench: FakeWorkbench, tmp_path: Path) -> None:
    finish(bench)
    (tmp_path / "日本.txt").write_text("a boat\n")
    (tmp_path / "b.bin").write_bytes(b"ab\0")
    boat = TextFile("日本.txt", "a boat\n")

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer

        async def choose(name: str) -> None:
            QTest.mouseClick(composer.attach_button, LEFT)
            dialog = window.findChild(QFileDialog)
            assert dialog is not None
            dialog.setDirectory(str(tmp_path))
            dialog.selectFile(str(tmp_path / name))
            dialog.accept()
            await until(lambda: window.findChild(QFileDialog) is None)

        # a binary one is refused inline, with numbers
        await choose("b.bin")
        await until(lambda: composer.notice.words == "b.bin is no text: byte 2 of 3 is 0")
        assert not composer.chips.files
        # a text file is put before the typed text
        compose, counted = bench.drafts.compose, asyncio.Event()

        async def compose_later(
            session_id: int, text: str, replaces: int | None = None, files: Sequence[str] = ()
        ) -> Composition:
            await counted.wait()
            return await compose(session_id, text, replaces, files)

        bench.drafts.compose = compose_later  # type: ignore[method-assign]
        await choose("日本.txt")
        await until(lambda: composer.chips.files == (boat,))
        # with its tokens, as soon as they are counted
        chip = composer.chips.chips[0]
        assert chip.size_label.text() == "7 characters"
        counted.set()
        await until(lambda: chip.size_label.text() == "2 tokens")
        # its text is shown by key as under the pointer
        chip.preview.setFocus()
        QTest.keyClick(chip.preview, Qt.Key.Key_Space)
        await until(QToolTip.isVisible)
        assert QToolTip.text() == chip.toolTip() == plain_tooltip("a boat\n")
        assert chip.preview.accessibleDescription() == "a boat\n"
        QToolTip.hideText()
        await choose("日本.txt")  # the same file again changes nothing
        assert composer.chips.files == (boat,)
        QTest.keyClicks(composer.field, "Whose?")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("send") == [(TRIP, "[日本.txt]\na boat\n[end of 日本.txt]\n\nWhose?")])
        await until(lambda: composer.chips.files == () and composer.draft == "")
        await until(lambda: not window.controller.running)
        # a pinned file is removed from the message and put before every turn
        await choose("日本.txt")
        await until(lambda: len(composer.chips.chips) == 1)
        QTest.mouseClick(composer.chips.chips[0].pin, LEFT)
        await until(lambda: bench.asked("pin_files") == [(TRIP, (boat,))])
        await until(lambda: composer.chips.files == ())
        # from where it can be removed again
        QTest.mouseClick(composer.setup_button, LEFT)
        pinned = window.popover.system.pinned
        await until(lambda: pinned.files == (boat,))
        QTest.mouseClick(pinned.chips[0].remove, LEFT)
        await until(lambda: bench.asked("pin_files")[-1] == (TRIP, ()))
        window.popover.close_again()
        # a file stays with its session
        await choose("日本.txt")
        await until(lambda: len(composer.chips.chips) == 1)
        window.controller.open(3)
        await until(lambda: composer.chips.files == ())
        window.controller.open(TRIP)
        await until(lambda: composer.chips.files == (boat,))
        QTest.mouseClick(composer.chips.chips[0].remove, LEFT)
        assert not composer.chips.files

    in_window(scene)


@pytest.mark.slow
def test_a_message_that_turns_out_too_long_after_send_becomes_a_draft_with_choices(
    in_window: Play, bench: FakeWorkbench
) -> None:
    finish(bench)
    full = Composition(12, None, 8200, 8192)

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer

        async def refused(session_id: int, text: str, replaces: int | None = None) -> None:
            """As a workbench whose engine was started by the message, which did not fit."""
            bench.calls.append(("send", session_id, text, replaces))
            view = bench.views[session_id]
            failed = replace(bench.turn("assistant", []), status=TurnStatus.PARTIAL, overflowed=True, can_retry=False)
            bench.views[session_id] = replace(view, turns=(*view.turns, bench.turn("user", [text]), failed))
            bench.emit(SessionChanged(bench.views[session_id]))
            counting(bench, full)

        counting(bench, Composition(None, None, 8188, None))
        bench.answers.send = refused  # type: ignore[method-assign]  # the fake's answers always fit
        QTest.keyClicks(composer.field, "Too long")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        # then the message is the draft again, and the choices are offered as soon as it is counted
        await until(composer.overflow.isVisible)
        assert composer.draft == "Too long"
        assert "8 tokens too many for the context of 8,192" in composer.overflow.message.text()
        assert len(bench.asked("send")) == 1
        # the choices are offered once
        composer.overflow.dismiss.click()
        window.controller.drafts.compose(composer.message)
        await until(lambda: len(bench.asked("compose")) >= 3)
        await asyncio.sleep(0.05)
        assert not composer.overflow.isVisible()

    in_window(scene)


def test_a_draft_that_cannot_be_counted_is_sent_although_the_previous_one_was_too_long(
    in_window: Play, bench: FakeWorkbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(bench)
    refused: list[str] = []

    async def refuse(_session_id: int, text: str, *_more: object, **_by_name: object) -> Composition:
        refused.append(text)
        raise Refusal("the engine is being started")

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        counting(bench, Composition(12, None, 8200, 8192))
        QTest.keyClicks(composer.field, "Too long")
        await until(lambda: composer.meter.is_too_long)
        # when
        monkeypatch.setattr(bench.drafts, "compose", refuse)
        composer.field.setPlainText("Short")
        await until(lambda: refused == ["Short"])
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        # then
        await until(lambda: bench.asked("send") == [(TRIP, "Short")])
        assert not composer.overflow.isVisible()
        await until(lambda: not window.controller.running)

    in_window(scene)


def test_a_message_too_long_for_any_session_has_to_be_shortened(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        composer, ways = window.parts.composer, window.parts.composer.overflow
        counting(bench, Composition(9000, None, 9100, 8192))
        QTest.keyClicks(composer.field, "Too long")
        await until(lambda: "908 too many" in composer.meter.context.text())
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        assert ways.isVisible()
        assert "shorten it, or remove a file" in ways.message.text()
        assert not ways.leave_out.isVisible()
        assert not ways.new.isVisible()
        # earlier turns leave no room for a shorter one
        counting(bench, Composition(12, None, 8200, 8192))
        QTest.keyClick(composer.field, Qt.Key.Key_Backspace)
        await until(lambda: "8 too many" in composer.meter.context.text().replace("908", ""))
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        assert ways.leave_out.isVisible()
        assert ways.new.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_a_message_that_does_not_fit_offers_choices_before_send(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    full = Composition(12, None, 8200, 8192)

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        counting(bench, full)
        QTest.keyClicks(composer.field, "Too long")
        await until(lambda: "8 too many" in composer.meter.context.text())
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        assert composer.overflow.isVisible()
        assert "8 tokens too many for the context of 8,192" in composer.overflow.message.text()
        assert not composer.overflow.larger.isVisible()
        assert (bench.asked("send"), composer.draft) == ([], "Too long")
        # leave out: by key, the button has the keyboard focus
        QTest.keyClick(composer.overflow.leave_out, Qt.Key.Key_Space)
        await until(lambda: bench.asked("leave_out") == [(TRIP, "Too long")])
        await until(lambda: composer.notice.words.startswith("2 turns are left out"))
        assert composer.notice.property("kind") == "done"
        assert not composer.overflow.isVisible()
        # a larger context, where there is one
        counting(bench, replace(full, can_grow=True))
        told = list[Composition]()
        window.controller.drafts.composed.connect(told.append)
        window.controller.drafts.compose(composer.message)
        await until(lambda: told)
        QTest.mouseClick(composer.send_button, LEFT)
        QTest.mouseClick(composer.overflow.larger, LEFT)
        await until(lambda: bench.asked("grow_context") == [()])
        # it is offered only if its KV fits; otherwise the numbers explain why not
        tight = replace(full, whole_context=32_768, whole_bytes=6_000_000_000, kv_budget=2_000_000_000)
        counting(bench, tight)
        window.controller.drafts.compose(composer.message)
        await until(lambda: told[-1] == tight)
        QTest.mouseClick(composer.send_button, LEFT)
        assert not composer.overflow.larger.isVisible()
        assert "32,768 tokens would take 6 GB of KV; 2 GB is set aside" in composer.overflow.too_large.text()
        # or a new session, which gets the draft
        QTest.mouseClick(composer.send_button, LEFT)
        QTest.mouseClick(composer.overflow.new, LEFT)
        await until(lambda: window.parts.top.title.text() == "New session")
        assert composer.draft == "Too long"
        window.controller.open(TRIP)
        await until(lambda: window.parts.top.title.text() == "A spring trip")
        assert composer.draft == ""
        assert bench.asked("send") == []

    in_window(scene)


@pytest.mark.slow
def test_the_composer_notes_a_model_without_chat_roles(in_window: Play, bench: FakeWorkbench) -> None:
    counting(bench, Composition(3, None, 3, 8192, takes_roles=False))

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        QTest.keyClicks(composer.field, "Once upon a")
        await until(lambda: composer.roles.isVisible())
        # when
        composer.roles.setFocus()
        QTest.keyClick(composer.roles, Qt.Key.Key_Space)
        # then the row that changes it is shown
        await until(lambda: window.settings.isVisible() and window.settings.engine.combos["chat_format"].count() == 4)
        counting(bench, Composition(3, None, 3, 8192))
        QTest.keyClicks(composer.field, " time")
        await until(lambda: composer.roles.isHidden())

    in_window(scene)


@pytest.mark.slow
def test_a_slowly_read_file_is_attached_to_the_session_in_which_it_was_chosen(
    in_window: Play, bench: FakeWorkbench, tmp_path: Path
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("the boat is called Ada")
    reads = bench.drafts.read_file
    slow = asyncio.Event()

    async def read(path: str) -> TextFile:
        await slow.wait()
        return await reads(path)

    bench.drafts.read_file = read  # type: ignore[method-assign]  # slower than the user

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        QTest.keyClicks(composer.field, "See this")
        composer.attach_wanted.emit(str(notes))
        window.controller.open(4)
        await until(lambda: window.controller.is_shown(4))
        slow.set()
        await until(lambda: len(window.controller.tasks) == 0)
        assert (composer.draft, composer.chips.files) == ("", ())
        window.controller.open(TRIP)
        await until(lambda: window.controller.is_shown(TRIP))
        assert (composer.draft, [file.name for file in composer.chips.files]) == ("See this", ["notes.txt"])

    in_window(scene)
