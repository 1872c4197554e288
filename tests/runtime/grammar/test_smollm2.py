"""SmolLM2 under grammars: finished answers parse, validate and are accepted; both backends give the same text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from runtime import Completion, GenerationOptions, Grammar, LanguageModel, SamplingOptions, load
from runtime.shelf.source import resolve
from tests.runtime.grammar.judge import accepts, begins
from tests.runtime.grammar.samples import ALL, JSON, LARK, REGEX, SCHEMA, Parcel

pytestmark = pytest.mark.slow
GREEDY = SamplingOptions(temperature=0.0)
ASKED = [{"role": "user", "content": "Describe a parcel as JSON with colour, weight, price and sizes."}]


@pytest.fixture(scope="module", params=["hf", "mlx"])
def model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    with load(resolve("smollm2").path, backend=request.param) as made:
        yield made


def answers(model: LanguageModel, each: list[GenerationOptions]) -> list[Completion]:
    async def main() -> list[Completion]:
        return list(await asyncio.gather(*(model.complete(ASKED, options) for options in each)))

    return asyncio.run(main())


def test_finished_json_answers_parse_and_validate(model: LanguageModel) -> None:
    # given a pydantic class and a schema, four seeds each, in one batch
    parcel = Grammar.json_schema(Parcel)
    told = answers(model, [GenerationOptions(grammar=g, seed=s, max_tokens=110) for g in (parcel, JSON) for s in range(4)])
    finished = 0
    for i, text in enumerate(told):
        grammar = parcel if i < 4 else JSON
        if text.incomplete:
            assert text.finish_reason == "length"
            assert begins(grammar, text)
            continue
        finished += 1
        assert accepts(grammar, text)
        if grammar is parcel:
            Parcel.model_validate_json(text)
        else:
            answer = json.loads(text)
            assert list(answer) == list(SCHEMA["properties"])
            assert answer["name"] in SCHEMA["properties"]["name"]["enum"]
            assert 0 <= answer["age"] <= 120
    assert finished >= 6  # otherwise the test would prove nothing


def test_regex_and_lark_answers_are_accepted(model: LanguageModel) -> None:
    wanted = [GenerationOptions(grammar=g, seed=s, max_tokens=60) for g in (REGEX, LARK) for s in range(4)]
    for options, text in zip(wanted, answers(model, wanted), strict=True):
        assert options.grammar is not None
        assert not text.incomplete
        assert accepts(options.grammar, text)


def test_an_answer_cut_by_max_tokens_is_marked_incomplete(model: LanguageModel) -> None:
    [text] = answers(model, [GenerationOptions(grammar=JSON, seed=1, max_tokens=5)])
    assert (text.finish_reason, text.incomplete) == ("length", True)


def test_both_backends_give_the_same_answers() -> None:
    told = []
    for backend in ("hf", "mlx"):
        with load(resolve("smollm2").path, backend=backend) as made:
            told.append(answers(made, [GenerationOptions(grammar=g, sampling=GREEDY, max_tokens=100) for g in ALL.values()]))
    assert told[0] == told[1]
