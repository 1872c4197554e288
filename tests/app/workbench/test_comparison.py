"""The path of a real session under a second model, in engines that can fail."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtime import (
    Priority,
    SamplingOptions,
)
from tests.app.workbench.comparison_scene import SAME, TINY, Engines, Told, compared, everything
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import OPTIONS, Scene, answered, until
from tests.runtime.adapters.toys import toy_adapter
from tests.tiny_models import tiny_path
from ui import AdapterChoice, ComparisonChoice
from ui.comparison.model_facts import summary


def test_the_same_model_on_another_engine_has_the_same_numbers(play: Play, path: Path) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, answer = await answered(s)
        before, told = everything(path), Told()
        found = await compared(s, session_id, SAME, told)
        assert everything(path) == before
        ids = await s.path_ids(session_id)
        assert (found.read, len(found.found), found.found.aligned_by) == (len(ids), len(ids), "tokens")
        assert found.found.difference[1:].tolist() == [0.0] * (len(ids) - 1)
        assert found.found.kl is not None
        assert found.found.kl[1:].max() == 0.0
        places = found.spans[answer.node_id]
        assert len(places) == len(answer.run)
        np.testing.assert_allclose(found.found.left.logprob[places], answer.run.logprob, atol=1e-5)
        assert (found.left, found.right) == (s.workbench.services.supervisor.running.info.name, "x on fake")  # type: ignore[union-attr]  # it runs
        assert told[-1] == ("comparing", told[-1][2], told[-1][2])
        assert told[0][0] == "loading x on fake"
        assert engine.priorities[-1] is Priority.BACKGROUND
        assert engine.open == []  # it ended with the comparison

    play(scene, engine=engine)


def test_another_tokenizer_is_aligned_by_bytes(play: Play, path: Path) -> None:
    engine = Engines(tiny=tiny_path("llama"))

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        before = everything(path)
        found = (await compared(s, session_id, TINY)).found
        assert everything(path) == before
        assert (found.aligned_by, found.kl) == ("bytes", None)
        assert found.left.run.ids.tolist() == await s.path_ids(session_id)
        assert [t.bytes for t in found.totals()] == [found.totals()[0].bytes] * 2

    ascii_only = SamplingOptions(banned_tokens=tuple(range(128, 256)))
    play(scene, engine=engine, options=replace(OPTIONS, sampling=ascii_only))


def test_an_answer_that_is_not_text_is_read_bytewise_by_another_tokenizer(play: Play) -> None:
    engine = Engines(tiny=tiny_path("llama"))

    async def scene(s: Scene) -> None:
        session_id, answer = await answered(s)
        found = await compared(s, session_id, TINY)
        data = b"".join(answer.run.token_bytes)
        with pytest.raises(UnicodeDecodeError):
            data.decode()
        assert b"".join(found.found.right.run.token_bytes).count(data) == 1
        assert found.found.scored[found.spans[answer.node_id]].all()
        assert engine.open == []

    no_text = SamplingOptions(banned_tokens=tuple(i for i in range(256) if not 0x80 <= i < 0xC0))
    play(scene, engine=engine, options=replace(OPTIONS, sampling=no_text))


@pytest.mark.slow
def test_a_model_is_compared_with_itself_in_other_weights(play: Play) -> None:
    engine = Engines(x=tiny_path("llama"))

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        choices = [each for each in await s.workbench.comparison.choices(session_id) if each.weights]
        assert {"bfloat16", "int8", "int4"} <= {each.weights for each in choices}
        assert "float32" not in {each.weights for each in choices}  # so it runs
        chosen = next(each for each in choices if each.weights == "int8")
        assert chosen.label.endswith("with int8 weights")
        await compared(s, session_id, chosen)
        assert engine.started[-1][2]["weights"] == "int8"
        await compared(s, session_id, ComparisonChoice("x", "hf", "plain"))
        assert "weights" not in engine.started[-1][2]

    play(scene, engine=engine)


def test_the_first_token_with_a_kl_is_reported(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.workbench.compare.comparison.MOST_ROWS", 5)

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        found = await compared(s, session_id, SAME)
        assert found.kl_from == found.read - 5
        assert found.found.kl is not None
        assert np.isnan(found.found.kl).tolist() == [i < found.kl_from for i in range(found.read)]
        assert summary(found)[1].endswith("; KL for the last 5 tokens")
        # and it covers all tokens on request
        whole = await s.workbench.comparison.compare(session_id, SAME, lambda _words, _done, _total: None, kl_of_all=True)
        assert whole.kl_from == 0
        assert whole.found.kl is not None
        assert np.isnan(whole.found.kl).tolist() == [i == 0 for i in range(whole.read)]  # no token precedes the first
        assert "KL" not in summary(whole)[1]

    play(scene, engine=Engines())


def test_other_adapters_need_no_second_engine(play: Play, tmp_path: Path) -> None:
    engine = Engines()
    folder = toy_adapter(tmp_path / "A", 1)

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        await s.workbench.setup.add_adapter(session_id, str(folder))
        choices = await s.workbench.comparison.choices(session_id)
        base = next(choice for choice in choices if choice.same_engine)
        assert base.adapters == ()
        assert base.label.endswith("with no adapters")
        found = await compared(s, session_id, base)
        assert found.left.endswith("with the adapters A × 1")
        assert np.abs(found.found.difference[1:]).max() > 0.01
        assert len(engine.started) == 1
        (stack,) = (await s.workbench.setup.view(session_id)).adapters
        assert stack.loaded  # the session's own are not changed

        choice = AdapterChoice(stack.choice.folder, stack.choice.name, on=False)
        await s.workbench.setup.set_adapters(session_id, [choice])
        with_it = next(c for c in await s.workbench.comparison.choices(session_id) if c.same_engine)
        again = await compared(s, session_id, with_it)
        np.testing.assert_allclose(again.found.difference[1:], -found.found.difference[1:], atol=1e-5)

    play(scene, engine=engine)


def test_a_comparison_names_its_adapters(play: Play, tmp_path: Path) -> None:
    engine = Engines()
    folder = toy_adapter(tmp_path / "A", 1)

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        await s.workbench.setup.add_adapter(session_id, str(folder))
        (line,) = (await s.workbench.setup.view(session_id)).adapters
        engine.waits = asyncio.Event()
        comparing = asyncio.create_task(compared(s, session_id, SAME))
        await until(lambda: engine.open)
        await s.workbench.setup.set_adapters(session_id, [AdapterChoice(line.choice.folder, line.choice.name, on=False)])
        engine.waits.set()
        assert (await comparing).left.endswith("with the adapters A × 1")

    play(scene, engine=engine)


def test_the_second_engine_is_kept_until_it_is_replaced_or_closed(play: Play) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        await s.workbench.comparison.keep_model(True)
        await compared(s, session_id, SAME)
        await compared(s, session_id, SAME)
        assert (len(engine.started), len(engine.open)) == (2, 1)
        await compared(s, session_id, ComparisonChoice("y", "fake", "y"))
        assert (len(engine.started), len(engine.open)) == (3, 1)  # another one replaces it
        assert s.workbench.comparison.keeps_model
        await s.workbench.comparison.keep_model(False)
        assert engine.open == []
        await s.workbench.comparison.keep_model(True)
        await compared(s, session_id, SAME)

    play(scene, engine=engine)
    assert engine.open == []  # it is closed with the app


def test_the_second_engine_has_the_options_of_the_first_except_its_own(play: Play) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        s.workbench.services.supervisor.options |= {
            "threads": 2, "blocks": {"path": "b"}, "draft_model": "d", "context_length": 64, "log_path": Path("/l/engine.log"),
        }  # fmt: skip
        await compared(s, session_id, ComparisonChoice("x", "fake", "x", dtype="bfloat16"))

    play(scene, engine=engine)
    assert engine.started[1] == ("x", "fake", {"threads": 2, "log_path": Path("/l/engine-second.log"), "dtype": "bfloat16"})
