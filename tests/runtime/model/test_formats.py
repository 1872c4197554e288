"""Chat formats through the whole model: `info`, fingerprints, ends of answers, both backends and the pipe."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime import (
    ContextOverflowError,
    GenerationOptions,
    InvalidRequestError,
    LanguageModel,
    SamplingOptions,
    UnsupportedFeatureError,
    load,
    spawn,
)
from runtime.text.formats import CHAT_FORMATS
from tests.tiny_models import TEMPLATE, tiny_path

MESSAGES = [{"role": "user", "content": "Hi"}]
GREEDY = SamplingOptions(temperature=0.0)
SHORT = GenerationOptions(max_tokens=5, seed=1)


def described(model: LanguageModel) -> tuple[Any, ...]:
    info = model.info
    return info.options["chat_format"], info.has_template, info.template_digest, model.chat_template


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_info_and_the_text_half_of_the_fingerprint_follow_the_format(backend: str, tmp_path: Path) -> None:
    # given one model, loaded with its own template, the same again as the user's, another, and none
    (tmp_path / "same.jinja").write_text(TEMPLATE)
    wanted: dict[str, dict[str, Any]] = {
        "model": {},
        "custom": {"chat_template_file": tmp_path / "same.jinja"},
        "gemma": {"chat_format": "gemma"},
        "none": {"chat_format": "none"},
    }
    infos = {}
    for name, options in wanted.items():
        with load(tiny_path("llama"), backend, **options) as model:
            infos[name] = model.info
            source = {"gemma": CHAT_FORMATS["gemma"].source, "none": None}.get(name, TEMPLATE)
            digest = None if source is None else hashlib.sha256(source.encode()).hexdigest()
            assert described(model) == (name, source is not None, digest, source)
    # then the KV stays valid, and the same text is the same template
    assert len({info.kv_fingerprint for info in infos.values()}) == 1
    assert len({info.model_fingerprint for info in infos.values()}) == 3
    assert infos["custom"].model_fingerprint == infos["model"].model_fingerprint
    assert [w for w in infos["gemma"].warnings if "<start_of_turn> and no <end_of_turn>" in w]
    assert infos["none"].warnings == infos["model"].warnings


@pytest.mark.slow
def test_chat_formats_are_the_same_over_the_pipe(tmp_path: Path) -> None:
    (tmp_path / "my.jinja").write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")

    async def scenario(**options: Any) -> None:
        with load("x", "mock", **options) as here:
            async with await spawn("x", "mock", **options) as there:
                assert described(here) == described(there)
                assert here.info.model_fingerprint == there.info.model_fingerprint
                assert here.render_chat(MESSAGES) == await there.render_chat_async(MESSAGES)
                assert await here.complete(MESSAGES, SHORT) == await there.complete(MESSAGES, SHORT)

    asyncio.run(scenario(chat_format="plain"))
    asyncio.run(scenario(chat_template_file=tmp_path / "my.jinja"))
    with pytest.raises(InvalidRequestError, match="TemplateSyntaxError"):
        asyncio.run(scenario(chat_template="{% if %}"))


async def answer_of(model: LanguageModel, options: GenerationOptions) -> tuple[str, str | None]:
    records = [record async for record in model.generate(model.render_chat(MESSAGES), options)]
    return "".join(record.text for record in records), records[-1].finish_reason


@pytest.mark.slow
def test_the_text_that_ends_a_turn_ends_the_answer_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a format whose turns end with a text that this model generates
    options = GenerationOptions(max_tokens=40, sampling=GREEDY)
    with load(tiny_path("llama"), "mlx", chat_format="plain") as model:
        whole, finish = asyncio.run(answer_of(model, options))
    assert finish == "length"
    said = whole[len(whole) // 2 :][:3]
    monkeypatch.setitem(CHAT_FORMATS, "plain", replace(CHAT_FORMATS["plain"], stops=(said,)))
    with load(tiny_path("llama"), "mlx", chat_format="plain") as model:
        # when
        cut = asyncio.run(answer_of(model, options))
        # then it ends there, unless the caller ignores such ends; the caller's own stops still hold
        assert cut == (whole[: whole.index(said)], "stop")
        assert asyncio.run(answer_of(model, replace(options, ignore_eos=True)))[0] == whole
        assert asyncio.run(answer_of(model, replace(options, resolve=False)))[0] == whole
        first = whole[1]
        assert asyncio.run(answer_of(model, replace(options, stop=(first,)))) == (whole[: whole.index(first)], "stop")
        assert asyncio.run(model.complete(MESSAGES, options)) == cut[0]
        # and the resolved options have both stops, with their sources
        resolved = model.resolve_options(replace(options, stop=(first,)))
        assert (resolved.options.stop, resolved.sources["stop"]) == ((first, said), "call and format")
        assert (resolved.options.eos_token_ids, resolved.sources["eos_token_ids"]) == (model.eos_token_ids, "model")
        assert asyncio.run(answer_of(model, resolved.options)) == (whole[: whole.index(first)], "stop")


def test_the_token_that_ends_a_turn_is_an_end_of_the_text() -> None:
    with load("x", "mock", chat_format="chatml") as model, load("x", "mock", chat_format="none") as own:
        assert model.eos_token_ids == own.eos_token_ids  # the model has <|im_end|> anyway: it is not listed twice
        assert all(model.is_eos(token) for token in model.eos_token_ids)


@pytest.mark.slow
def test_a_model_without_a_format_continues_text_and_says_how_to_get_one() -> None:
    async def scenario(model: LanguageModel) -> None:
        assert await model.complete("Hi", GenerationOptions(max_tokens=3, seed=1))
        with pytest.raises(UnsupportedFeatureError, match=r"no chat template; load it with one \(chat_format='chatml'"):
            await model.complete(MESSAGES)
        with pytest.raises(InvalidRequestError, match="no tokens"):
            await model.complete("")
        with pytest.raises(InvalidRequestError):
            await model.complete(None)  # type: ignore[arg-type]  # the mistake under test
        with pytest.raises(ContextOverflowError):
            await model.complete("x" * 40_000)

    async def both() -> None:
        with load("x", "mock", chat_format="none") as here:
            await scenario(here)
        async with await spawn("x", "mock", chat_format="none") as there:
            await scenario(there)

    asyncio.run(both())


def test_raw_text_starts_with_bos_only_if_add_bos_says_so() -> None:
    greedy = GenerationOptions(max_tokens=6, sampling=GREEDY)
    texts = {}
    for add_bos in ("yes", "no"):
        with load(tiny_path("llama"), "hf", add_bos=add_bos) as model:
            ids = model.tokenize("Hello there")
            assert (ids[0] == 0) == (add_bos == "yes")
            for _ in range(2):  # for text after other tokens: the same with and without
                assert model.tokenize("Hello there", add_special_tokens=False) == ids[len(model.tokenize("")) :]
                assert model.tokenize("", add_special_tokens=False) == []
            texts[add_bos] = asyncio.run(model.complete("Hello there", greedy))
            assert texts[add_bos] == "".join(record.text for record in model.generate_sync(ids, greedy))
    assert texts["yes"] != texts["no"]
