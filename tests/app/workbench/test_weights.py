"""Weights in fewer bits are named in the window: at the model, in the provenance of an answer, and at a draw."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.supervisor import Supervisor
from app.workbench import AppWorkbench, Services
from runtime import LanguageModel, ModelShelf, load
from storage import SessionStore
from tests.app.workbench.scene import OPTIONS
from tests.tiny_models import tiny_path

Act = Callable[[AppWorkbench], Awaitable[None]]


@pytest.fixture
def with_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Act, str], None]:
    """Plays a scene on a real model of the shelf, loaded with weights of a form, over one file."""
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "shelf"))
    ModelShelf().add(tiny_path("llama"), "tiny")

    async def start(source: str, backend: str, *, on_progress: object, **options: Any) -> LanguageModel:  # closed by its caller
        return await asyncio.to_thread(partial(load, source, backend, device="cpu", threads=1, **options))

    async def played(act: Act, weights: str) -> None:
        supervisor = Supervisor("tiny", "hf", start=start, weights=weights)
        workbench = AppWorkbench(Services(SessionStore.open(tmp_path / "sessions.db"), supervisor, OPTIONS))
        try:
            await supervisor.model()
            await act(workbench)
        finally:
            await workbench.close()

    return lambda act, weights: asyncio.run(played(act, weights))


def test_the_form_of_the_weights_is_named_beside_all_numbers(with_weights: Callable[[Act, str], None]) -> None:
    async def packed(workbench: AppWorkbench) -> None:
        [choice] = await workbench.models.list()
        assert choice.label == "int8 · tiny"
        session_id = (await workbench.sessions.open(await workbench.services.store.create_session("x"))).session_id
        await workbench.answers.send(session_id, "Hi")
        turn = (await workbench.sessions.open(session_id)).turns[-1]
        made = workbench.answers.how_made(session_id, turn.node_id)
        assert made is not None
        assert made.facts["engine"] == "hf · cpu · float32, int8 weights"
        facts = (await workbench.setup.view(session_id)).model
        assert facts is not None
        assert facts.dtype == "float32, int8 weights"
        assert any("perplexity of a fixed text" in warning for warning in facts.warnings)
        drawing = await workbench.drawings.find(session_id, turn.node_id, len(turn.run) - 1)
        assert drawing is not None
        assert drawing.model == "tiny · int8 weights"

    async def plain(workbench: AppWorkbench) -> None:
        [choice] = await workbench.models.list()
        assert choice.label == "tiny"
        [row] = await workbench.sessions.list()
        turn = (await workbench.sessions.open(row.session_id)).turns[-1]
        drawing = await workbench.drawings.find(row.session_id, turn.node_id, len(turn.run) - 1)
        assert drawing is not None
        assert drawing.model == "tiny · int8 weights"  # still the model that computed the numbers
        assert drawing.stale == "tiny"
        assert not drawing.can_ask

    with_weights(packed, "int8")
    with_weights(plain, "auto")
