"""Every option of load and generation with unsuitable values: refused by name, or accepted and working."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest

from runtime import (
    BeamOptions,
    GenerationOptions,
    LanguageModel,
    LoadOptions,
    RuntimeFault,
    SamplingOptions,
    SpeculativeOptions,
    load,
)
from runtime.errors import AdapterError, GrammarError, InvalidRequestError, OptionError
from tests.tiny_models import tiny_path

PROMPT = [5, 6, 7]
BACKENDS = ("mock", "hf", "mlx")
VALUES: dict[str, Any] = {
    "None": None,
    "True": True,
    "nan": math.nan,
    "inf": math.inf,
    "-1": -1,
    "0": 0,
    "0.5": 0.5,
    "1e-40": 1e-40,
    "1e300": 1e300,
    "()": (),
    "[]": [],
    "{}": {},
    "bytes": b"x",
    "no text": "",
    "a text": "x",
    "a NUL": "a\0b",
    "2**62": 2**62,
    "2**63": 2**63,
    "2**200": 2**200,
    "10**5000": 10**5000,
    "an object": object(),
    "texts": ["x"],
    "numbers": [1],
    "a mapping": {"x": 1},
    "a set": {1},
    "pairs": [("x", 10**5000)],
    "biases": {1: 10**5000},
    "huge": [10**5000],
    "a key": {10**5000: 1},
    "odd": [object()],
}
LOADING = [field.name for field in fields(LoadOptions)]
GENERATING = [field.name for field in fields(GenerationOptions) if field.name != "sampling"]
SAMPLING = [field.name for field in fields(SamplingOptions)]


class OddRepr:
    """A value whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def refusal(work: Callable[..., object], *arguments: Any, **keywords: Any) -> RuntimeFault | None:
    """The refusal of a call, or None. Any other exception passes."""
    try:
        work(*arguments, **keywords)
    except RuntimeFault as fault:
        return fault
    return None


def answers(model: LanguageModel) -> bool:
    """Whether a request is answered, so that the scheduler is alive."""
    return len(list(model.generate_sync(PROMPT, GenerationOptions(max_tokens=2, ignore_eos=True)))) == 2


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", LOADING)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_load_option_is_refused_by_name_or_accepted(backend: str, name: str) -> None:
    def loads_and_answers(**options: Any) -> None:
        with load(tiny_path("llama"), backend, **options) as model:
            assert answers(model)

    for value in VALUES.values():
        fault = refusal(loads_and_answers, **{name: value})
        if isinstance(fault, OptionError):
            assert fault.option.partition(": ")[0] == name
            assert name in str(fault)
        assert not isinstance(fault, GrammarError)


@pytest.fixture(scope="module", params=BACKENDS)
def model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    with load(tiny_path("llama"), request.param, threads=1) as made:
        yield made


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", [*GENERATING, "sampling", *(f"sampling.{name}" for name in SAMPLING)])
def test_a_generation_option_is_refused_by_name_or_accepted(model: LanguageModel, name: str) -> None:
    inner = name.removeprefix("sampling.")
    for value in VALUES.values():
        if inner != name:
            options = GenerationOptions(max_tokens=2, sampling=SamplingOptions(**{inner: value}))
        else:
            options = GenerationOptions(**{"max_tokens": 2, name: value})
        fault = refusal(next, model.generate_sync(PROMPT, options))
        assert fault is None or isinstance(fault, InvalidRequestError | AdapterError | GrammarError)
        assert inner.removesuffix("s") in str(fault or inner)
    assert answers(model)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*GENERATING, *SAMPLING])
def test_a_mapping_of_options_is_refused_with_the_given_name(model: LanguageModel, name: str) -> None:
    for value in VALUES.values():
        fault = refusal(model.resolve_options, {name: value})
        assert fault is None or isinstance(fault, InvalidRequestError | AdapterError | GrammarError)
        assert name.removesuffix("s") in str(fault or name)
        if isinstance(fault, OptionError):
            assert fault.option.split()[0] == name  # "logit_bias of token 3" too


@pytest.mark.parametrize(("kind", "known"), [(SpeculativeOptions, ()), (BeamOptions, (512,))])
def test_speculation_and_beam_options_are_refused_by_name_or_accepted(kind: Any, known: tuple[int, ...]) -> None:
    for field in fields(kind):
        for value in VALUES.values():
            fault = refusal(kind(**{field.name: value}).check, *known)
            assert field.name in str(fault or field.name)


@pytest.mark.parametrize(
    ("given", "field"),
    [("max_new_tokens", "max_tokens"), ("temp", "temperature"), ("top_logprobs", "top_k"), ("typ_p", "typical_p")],
)
def test_a_refusal_uses_the_spelling_of_the_caller(given: str, field: str) -> None:
    for value in (-3, math.nan):
        with pytest.raises(OptionError, match=f"^{given} ") as caught:
            GenerationOptions.from_mapping({given: value})
        assert caught.value.option == given
        assert caught.value.told("--that").startswith("--that ")
        assert field == given or field not in str(caught.value)


def test_a_value_whose_repr_fails_is_refused_too() -> None:
    for value in (OddRepr(), 10**5000):
        with pytest.raises(OptionError, match=r"^temperature .* that cannot be shown$"):
            GenerationOptions.from_mapping({"temperature": value})


def test_none_equals_an_option_that_is_not_given() -> None:
    assert (
        LoadOptions.from_mapping({field.name: None for field in fields(LoadOptions) if field.default is None}) == LoadOptions()
    )
    assert GenerationOptions.from_mapping(dict.fromkeys([*GENERATING, *SAMPLING])) == GenerationOptions()
