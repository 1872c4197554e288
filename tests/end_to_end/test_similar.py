"""Similar turns with a real engine: their order is that of transformers' own hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.workbench import AppWorkbench
from tests.end_to_end.conftest import Scene
from tests.end_to_end.driving import last, say, until
from tests.end_to_end.test_window import seeded_session
from tests.fakes import settled_report
from tests.tiny_models import tiny_folder
from ui import MainWindow, TurnView
from ui.core.shown import typed_text

OpenApp = Callable[[str, str, Scene], None]
CONTROL_SHIFT = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
QUESTIONS = ("The parser reads a file.", "def f(a): return a * 2", "The parser reads a line. 日本 🐈")


def by_transformers(texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
    """``(n, hidden)``: the mean of the last hidden states of each text, alone, with length 1."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_folder("llama").path, dtype=torch.float32).eval()
    rows = []
    with torch.inference_mode():
        for ids in texts:
            states = model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states[-1][0]
            rows.append(torch.nn.functional.normalize(states.mean(0), dim=0).numpy())
    return np.stack(rows)


@pytest.mark.slow
def test_the_order_equals_that_of_transformers_and_a_second_search_computes_nothing(open_app: OpenApp) -> None:
    async def scene(window: MainWindow, workbench: AppWorkbench) -> None:
        # given a real conversation whose last answer was regenerated
        await seeded_session(window, workbench)
        assert window.controller.shown is not None
        await workbench.setup.set_option(window.controller.shown.session_id, "max_tokens", 10)
        for question in QUESTIONS:
            before = len(said(window))
            say(window, question)
            await until(partial(answered_since, window, before))
        other = last(window)
        window.acts.regenerate.trigger()
        await until(lambda: last(window).node_id != other.node_id and not window.controller.running)
        turns = said(window)
        model = workbench.services.supervisor.running
        assert model is not None
        held = await settled_report(model)
        # when the first question is compared, by the key
        window.presenter.pin(turns[0].node_id, len(turns[0].run) // 2)
        panel = window.parts.similar
        window.activateWindow()
        QTest.keyClick(window, Qt.Key.Key_S, CONTROL_SHIFT)
        await until(lambda: panel.list.rows.rows)
        # then the rows are in the order of numpy's cosines of transformers' own states
        texts = [typed_text(turn.run) for turn in (*turns, other)]
        vectors = by_transformers([await model.tokenize_async(text) for text in texts])
        cosines = vectors[1:] @ vectors[0]
        nodes = [turn.node_id for turn in (*turns[1:], other)]
        rows = panel.list.rows.rows
        expected = dict(zip(nodes, cosines.tolist(), strict=True))
        assert [row.node_id for row in rows] == sorted(nodes, key=lambda node: -expected[node])
        np.testing.assert_allclose([row.similarity for row in rows], [expected[row.node_id] for row in rows], atol=1e-5)
        assert [row.node_id for row in rows if not row.on_path] == [other.node_id]
        # and nothing is left in the KV cache
        assert (await settled_report(model)).bytes == held.bytes
        # when a turn of another branch is chosen, its path is shown
        panel.list.setCurrentIndex(panel.list.rows.index(panel.list.rows.place(other.node_id) or 0))
        QTest.keyClick(panel.list, Qt.Key.Key_Return)
        await until(lambda: last(window).node_id == other.node_id)
        # and a second search computes nothing
        await until(lambda: model.metrics().texts_embedded == len(texts) and not model.metrics().requests_active)
        spent, asked = model.metrics().tokens_computed, model.metrics().queries
        QTest.keyClick(panel.list, Qt.Key.Key_Escape)
        assert panel.isHidden()
        QTest.keyClick(window, Qt.Key.Key_S, CONTROL_SHIFT)
        await until(lambda: len(panel.list.rows.rows) == 6)
        await model.next_token_logprobs([1])  # its counters are reported after this step
        await until(lambda: model.metrics().queries > asked)
        assert model.metrics().texts_embedded == len(texts)
        assert model.metrics().tokens_computed == spent + 1

    open_app(str(tiny_folder("llama").path), "hf", scene)


def said(window: MainWindow) -> list[TurnView]:
    """The turns of the path that have text."""
    assert window.controller.shown is not None
    return [turn for turn in window.controller.shown.view.turns if turn.role != "system"]


def answered_since(window: MainWindow, turns: int) -> bool:
    """Whether a question and its whole answer follow so many turns."""
    return not window.controller.running and len(said(window)) == turns + 2
