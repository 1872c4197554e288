"""Models on servers, on the page of models."""

from __future__ import annotations

import asyncio

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.ui.conftest import until
from tests.ui.fakes import FakeWorkbench
from tests.ui.models.test_models_page import Play, opened, pick
from ui import LoadChoice, MainWindow, ServerModel

LEFT = Qt.MouseButton.LeftButton
UNENCRYPTED = "http:// to vllm.example sends prompts, answers and the key unencrypted; use https://, or confirm it"


@pytest.mark.slow
def test_a_server_is_connected_opened_and_removed_from_the_list(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        form = page.server_form
        assert not form.isVisible()
        QTest.mouseClick(page.server_button, LEFT)
        await until(form.url.hasFocus)
        QTest.keyClick(form.url, Qt.Key.Key_Return)  # no request without an address
        QTest.keyClicks(form.url, "http://vllm.example:8000")
        QTest.keyClicks(form.name, "big")
        QTest.keyClicks(form.key, "sk-secret")
        assert not form.plain_http.isVisible()
        bench.problem = UNENCRYPTED
        QTest.keyClick(form.key, Qt.Key.Key_Return)
        await until(lambda: form.said.text() == UNENCRYPTED)
        # only now is unencrypted access offered
        assert form.plain_http.isVisible()
        assert form.connect_button.isEnabled()
        bench.problem = ""
        form.plain_http.setChecked(True)
        form.url.setText("http://other.example:8000")  # the consent was for another address
        assert (form.plain_http.isChecked(), form.plain_http.isVisible()) == (False, False)
        form.url.setText("http://vllm.example:8000")
        bench.problem = UNENCRYPTED
        QTest.mouseClick(form.connect_button, LEFT)
        await until(form.plain_http.isVisible)
        bench.problem = ""
        form.plain_http.setChecked(True)
        QTest.mouseClick(form.connect_button, LEFT)
        await until(lambda: "big" in page.models)
        assert not form.isVisible()
        assert form.key.text() == ""
        assert page.notice.words == "big is on the list"
        asked = [call[0] for call in bench.asked("connect")]
        assert asked == [
            *[ServerModel("http://vllm.example:8000", "big", "", "sk-secret")] * 2,
            ServerModel("http://vllm.example:8000", "big", "", "sk-secret", plain_http=True),
        ]
        assert "sk-secret" not in repr(asked)
        # it has no files here: one press opens it
        row = page.models["big"]
        assert [part.isVisible() for part in (row.verify_action, row.reveal_action, row.quantise_action)] == [False] * 3
        assert row.size_label.text() == ""
        QTest.mouseClick(row.open_button, LEFT)
        await until(lambda: bench.asked("open_model") == [("big", LoadChoice())])
        pick(row, row.remove_action)
        QTest.mouseClick(row.ask.do_button, LEFT)
        await until(lambda: "big" not in page.models)
        assert page.notice.words == "removed from the list"

    in_window(scene)


@pytest.mark.slow
def test_the_form_of_a_server_that_does_not_answer_can_be_closed(in_window: Play, bench: FakeWorkbench) -> None:
    bench.asking = asyncio.Event()

    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        QTest.mouseClick(page.server_button, LEFT)
        QTest.keyClicks(page.server_form.url, "127.0.0.1:1")
        QTest.keyClick(page.server_form.url, Qt.Key.Key_Return)
        await until(lambda: page.server_form.said.text() == "asking the server…")
        QTest.keyClick(page.server_form.url, Qt.Key.Key_Escape)
        assert not page.server_form.isVisible()
        assert page.server_button.hasFocus()
        bench.asking.set()  # type: ignore[union-attr]  # set above
        QTest.mouseClick(page.server_button, LEFT)
        assert page.server_form.connect_button.isEnabled()
        assert list(page.models) == ["smollm2", "org/qwen@abc"]

    in_window(scene)
