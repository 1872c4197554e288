"""Input that the window refuses before anything is computed; the next message is answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene, own_tokens
from tests.runtime.adapters.toys import toy_adapter
from ui import AnswerFormat, FormatKind, Refusal

VOCABULARY = 259  # of the fake model


async def computed(s: Scene) -> int:
    model = s.workbench.services.supervisor.running
    assert model is not None
    return model.metrics().tokens_computed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("temperature", float("-inf"), "temperature"),
        ("temperature", "warm", "temperature"),
        ("top_p", 1.01, "top-p"),
        ("top_p", float("nan"), "top-p"),
        ("min_p", -0.1, "min-p"),
        ("typical_p", 0, "typical"),
        ("xtc_probability", 2, "XTC"),
        ("repetition_penalty", 0, "repetition"),
        ("logit_bias", {"no such token": 1}, "token"),
        ("logit_bias", {"5": float("nan")}, "bias"),
        ("banned_tokens", [-1], "never drawn"),
        ("order", ["top_p", "top_p"], "twice"),
        ("stop", [""], "empty"),
        ("temperature", -1, "temperature"),
        ("temperature", float("nan"), "temperature"),
        ("top_p", 0.0, "top-p"),
        ("max_tokens", 0, "longest answer"),
        ("tempertaure", 1, "no option"),
        ("seed", 1 << 70, "seed"),
    ],
)
def test_an_invalid_setting_is_refused(play: Play, name: str, value: Any, words: str) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        before = await s.workbench.setup.view(session_id)
        with pytest.raises(Refusal, match=words):
            await s.workbench.setup.set_option(session_id, name, value)
        assert await s.workbench.setup.view(session_id) == before

    play(scene)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("banned_tokens", list(range(VOCABULARY)), "nothing is left to draw"),
        ("banned_tokens", [VOCABULARY], "outside the vocabulary of 259"),
        ("logit_bias", {str(VOCABULARY): 1.0}, "outside the vocabulary of 259"),
    ],
)
def test_options_that_only_the_model_can_check_are_refused_before_it_computes(
    play: Play, name: str, value: Any, words: str
) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.answers.send(session_id, "hello")
        said, before = await s.last(session_id), await computed(s)
        await s.workbench.setup.set_option(session_id, name, value)
        # when an answer is requested, the turn has the reason why there is none
        await s.workbench.answers.regenerate(session_id, said.node_id)
        refused = await s.last(session_id)
        assert words in refused.note
        assert len(refused.run) <= len(said.run) - len(own_tokens(said))
        # and continuations are refused
        with pytest.raises(Refusal, match=words):
            await s.workbench.continuations.continue_many(session_id, said.node_id, own_tokens(said)[1], 2)
        assert await computed(s) == before
        # then, without it, the next one is answered
        await s.workbench.setup.set_option(session_id, name, None)
        await s.workbench.answers.send(session_id, "and now?")
        assert len((await s.last(session_id)).run) > 2

    play(scene)


def test_a_form_that_allows_nothing_is_refused(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        for form, words in (
            (AnswerFormat(FormatKind.REGEX, r"[^\s\S]"), "allows nothing"),
            (AnswerFormat(FormatKind.JSON_SCHEMA, '{"enum": []}'), "Unsatisfiable"),
            (AnswerFormat(FormatKind.JSON_SCHEMA, "[1]"), "a JSON schema is a dictionary"),
        ):
            with pytest.raises(Refusal, match=words):
                await s.workbench.setup.set_format(session_id, form)
        assert (await s.workbench.setup.view(session_id)).answer_format == AnswerFormat()

    play(scene)


def spoilt(folder: Path, how: str) -> str:
    """An adapter that is not for this model."""
    toy_adapter(folder, 1)
    if how == "another shape":
        tensors = load_file(folder / "adapter_model.safetensors")
        tensors["base_model.model.head.lora_A.weight"] = np.ones((2, 17), np.float32)
        save_file(tensors, folder / "adapter_model.safetensors")
    else:
        told = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(told | {"base_model_name_or_path": "org/Other-7B"}))
    return str(folder)


@pytest.mark.parametrize(
    ("how", "words"),
    [("another shape", "17 -> 259 in the adapter, 16 -> 259 in the model"), ("another base", "made for org/Other-7B")],
)
def test_an_adapter_for_another_model_is_refused_before_anything_is_computed(
    play: Play, tmp_path: Path, how: str, words: str
) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.answers.send(session_id, "hello")
        before = await computed(s)
        with pytest.raises(Refusal, match=words):
            await s.workbench.setup.add_adapter(session_id, spoilt(tmp_path / "bad", how))
        assert list((await s.workbench.setup.view(session_id)).adapters) == []
        assert await computed(s) == before
        # then the next message is answered, by the base
        await s.workbench.answers.send(session_id, "and now?")
        assert len((await s.last(session_id)).run) > 2

    play(scene)
