"""Every member of a model with arguments of every wrong type: a typed error, and the next request is answered."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import chdir, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import GenerationOptions, InvalidRequestError, LanguageModel, RuntimeFault, load, spawn
from tests.tiny_models import tiny_path

PROMPT = [1, 2, 3]
WRONG: tuple[Any, ...] = (
    *(None, True, -1, 5, 1.5, math.nan, 2**200, "hello", "a\0b", b"x", object(), {}, {"a": 1}, print),
    *([None], ["a"], [1.5], [math.nan], [2**200], [object()], [[1, 2], [3]], [[]], [[None]]),
    *([{"role": "user"}], [{"role": 5, "content": 5}], [("a", math.nan)]),
)
SOUND = {  # valid values of required arguments, by name
    "ids": PROMPT,
    "batch": [PROMPT],
    "prompts": [PROMPT],
    "prompt_token_ids": PROMPT,
    "prompt_token_ids_list": [PROMPT],
    "max_tokens": 2,
    "eos_token_ids": [2],
    "prompt": "a",
    "text": "a",
    "texts": ["a"],
    "token_id": 1,
    "n": 2,
    "name": "a",
    "messages": [{"role": "user", "content": "a"}],
    "options": None,
    "pin": 1,
    "count": 4,
    "keys": [b"k"],
    "tools": None,
}
ENDS = {"close", "close_async"}


def members() -> list[tuple[str, str]]:
    """Every public method, with each of its parameters."""
    found: list[tuple[str, str]] = []
    for name, member in inspect.getmembers(LanguageModel, callable):
        if not name.startswith("_") and name not in ENDS:
            parameters = list(inspect.signature(member).parameters.values())[1:]
            found.extend((name, each.name) for each in parameters if each.kind is not each.VAR_KEYWORD)
    return found


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module", params=["here", "spawned"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    with chdir(tmp_path_factory.mktemp("here")):  # a text may be taken for a path
        yield from _model(request)


def _model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    if request.param == "here":
        with load(tiny_path("llama"), "fake") as made:
            yield made
        return
    with asyncio.Runner() as runner, runner.run(spawn(tiny_path("llama"), "fake")) as client:
        yield client


async def call(member: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Calls a member, and takes the first item of its result."""
    answer = member(**arguments)
    if inspect.isasyncgen(answer):
        await anext(answer, None)
        await answer.aclose()
    elif inspect.isawaitable(answer):
        async with asyncio.timeout(60):
            await answer
    elif isinstance(answer, Iterator):
        next(answer, None)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameter"), members())
def test_an_argument_of_a_wrong_type_is_refused_and_the_next_request_is_answered(
    model: LanguageModel, runner: asyncio.Runner, name: str, parameter: str, tmp_path: Path
) -> None:
    member = getattr(model, name, None)
    if member is None:  # members that only a model of this process has
        assert name in ("keep_vectors", "from_parts")
        return
    parameters = inspect.signature(member).parameters.values()
    needed = {each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD}
    for value in WRONG:
        arguments = {each: SOUND.get(each, str(tmp_path / "x")) for each in needed} | {parameter: value}
        with suppress(RuntimeFault, FileNotFoundError):
            runner.run(call(member, arguments))
    model.set_kv_budget(1 << 24)
    assert len(list(model.generate_sync(PROMPT, GenerationOptions(max_tokens=2, ignore_eos=True)))) == 2


def test_a_text_in_place_of_ids_is_refused_with_a_hint_to_tokenize(model: LanguageModel) -> None:
    async def first(text: Any) -> None:
        await anext(model.generate(text))

    text: Any = "What is said?"
    for ask in (
        lambda: next(iter(model.generate_sync(text))),
        lambda: model.next_token_logprobs_sync(text),
        lambda: asyncio.run(model.score(text)),
        lambda: asyncio.run(first(text)),
    ):
        with pytest.raises(InvalidRequestError, match=r"not a text: model\.tokenize\(text\)"):
            ask()


def test_options_given_by_name_equal_those_of_an_options_object(model: LanguageModel) -> None:
    options = GenerationOptions.from_mapping({"max_new_tokens": 4, "temp": 0.5, "seed": 3})
    named: dict[str, Any] = {"max_tokens": 4, "temperature": 0.5, "seed": 3}

    async def streamed(**given: Any) -> list[int]:
        return [record.token_id async for record in model.generate(PROMPT, **given)]

    async def completed(**given: Any) -> str:
        return await model.complete("a", **given)

    drawn = [record.token_id for record in model.generate_sync(PROMPT, options)]
    assert drawn == [record.token_id for record in model.generate_sync(PROMPT, **named)]
    assert drawn == asyncio.run(streamed(**named)) == asyncio.run(streamed(options=options))
    assert asyncio.run(completed(**named)) == model.complete_sync("a", **named) == model.complete_sync("a", options)
    asks: tuple[Callable[..., Any], ...] = (partial(model.generate_sync, PROMPT), partial(model.complete_sync, "a"))
    for ask in asks:
        with pytest.raises(InvalidRequestError, match="put all of them into the GenerationOptions"):
            list(ask(options, max_tokens=3))
        with pytest.raises(InvalidRequestError, match="unknown option 'num_beams'"):
            list(ask(num_beams=3))


@pytest.mark.parametrize("ids", [[5, 6], (5,), [np.int64(5)], np.array([5, 6])])
def test_complete_with_token_ids_is_refused_with_a_hint_to_generate(model: LanguageModel, ids: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"not (list|tuple|ndarray); generate continues token ids"):
        model.complete_sync(ids)
