"""Which layer decides an option, by which names, and the reported sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime.engine.own_options import OwnOptions
from runtime.errors import GrammarError, InvalidRequestError
from runtime.grammar.source import Grammar
from runtime.options.generation import DEFAULTS, ORDER, AnswerEnds, GenerationOptions, SamplingOptions, resolve_options

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}


def test_the_nearest_layer_decides_each_field() -> None:
    resolved = resolve_options(
        GenerationOptions(sampling=SamplingOptions(temperature=0.2), seed=7),
        session={"temperature": 0.3, "top_p": 0.4, "max_new_tokens": 30},
        preset=GenerationOptions(max_tokens=1024, sampling=SamplingOptions(top_p=0.95, min_p=0.05)),
        model={"top_k": 50, "min_p": 0.2, "max_new_tokens": 2048},
    )
    sampling = resolved.options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k) == (0.2, 0.4, 0.05, 50)
    assert (resolved.options.max_tokens, resolved.options.seed) == (30, 7)
    assert sampling.typical_p == 1.0
    assert sampling.order == ORDER
    wanted = {
        "sampling.temperature": "call",
        "seed": "call",
        "sampling.top_p": "session",
        "max_tokens": "session",
        "sampling.min_p": "preset",
        "sampling.top_k": "model",
        "sampling.typical_p": "default",
        "stop": "default",
    }
    assert {name: resolved.sources[name] for name in wanted} == wanted
    assert {name.removeprefix("sampling.") for name in resolved.sources} >= set(DEFAULTS)


def test_without_resolving_only_the_call_and_the_defaults_apply() -> None:
    call = GenerationOptions(resolve=False, sampling=SamplingOptions(top_k=3))
    resolved = resolve_options(call, session={"temperature": 0.1}, model={"max_new_tokens": 5})
    assert resolved.options.max_tokens == 512
    assert resolved.options.sampling.temperature == 1.0
    assert set(resolved.sources.values()) == {"call", "default"}


def test_a_mapping_can_set_a_field_to_its_default() -> None:
    resolved = resolve_options({"temperature": 1.0, "alternatives": 10}, preset={"temperature": 0.5, "alternatives": 3})
    assert resolved.options.sampling.temperature == 1.0
    assert resolved.options.top_k == 10
    assert resolved.sources["top_k"] == "call"


def test_an_order_disables_stages_of_other_layers() -> None:
    resolved = resolve_options({"order": ("temperature",)}, model={"top_k": 50, "temperature": 0.7})
    assert resolved.options.sampling.top_k == 0
    assert resolved.sources["sampling.top_k"] == "call"
    assert resolved.options.sampling.temperature == 0.7
    with pytest.raises(InvalidRequestError, match="contradicts an order without 'top_k'"):
        resolve_options({"order": ("temperature",), "top_k": 3})


def test_the_options_of_every_layer_are_validated() -> None:
    with pytest.raises(InvalidRequestError, match="temperature must be a number, 0 or more"):
        resolve_options(session={"temperature": -1})
    with pytest.raises(InvalidRequestError, match="options are"):
        resolve_options(7)  # type: ignore[arg-type]  # the mistake


def test_a_models_own_options_are_read_and_those_of_sampling_need_do_sample() -> None:
    config = {
        "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "typical_p": 0.9, "repetition_penalty": 1.05,
        "max_new_tokens": 2048, "eos_token_id": [1, 2], "transformers_version": "5", "min_p": None,
    }  # fmt: skip
    own = OwnOptions.read(config)
    assert own.warnings == ()
    assert own.options == GenerationOptions(
        max_tokens=2048,
        sampling=SamplingOptions(temperature=0.6, top_k=20, top_p=0.95, typical_p=0.9, repetition_penalty=1.05),
    )
    # without do_sample the options of random sampling are ignored
    silent = {name: value for name, value in config.items() if name != "do_sample"}
    assert OwnOptions.read(silent).options.sampling == SamplingOptions(repetition_penalty=1.05)
    assert OwnOptions.read([]) == OwnOptions()  # a file with other content


def test_a_model_with_do_sample_false_is_greedy_as_a_call_is() -> None:
    config = {"do_sample": False, "temperature": 0.6, "top_p": 0.9, "max_new_tokens": 9}
    own = OwnOptions.read(config)
    assert own == OwnOptions(GenerationOptions.from_mapping({"do_sample": False, "max_new_tokens": 9}))
    resolved = resolve_options(model=own.options)
    assert (resolved.options.sampling.temperature, resolved.sources["sampling.temperature"]) == (0.0, "model")
    assert resolve_options(preset={"temperature": 0.8}, model=own.options).options.sampling.temperature == 0.8


@pytest.mark.parametrize(
    ("config", "left"),
    [
        ({"do_sample": True, "temperature": -1, "top_p": 0.9}, {"top_p": 0.9}),
        ({"do_sample": True, "temperature": 0.0, "top_k": 5}, {"top_k": 5}),
        ({"do_sample": "yes", "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"suppress_tokens": [-1], "max_new_tokens": 7}, {"max_new_tokens": 7}),
        ({"suppress_tokens": [3, 99_999]}, {}),
        ({"suppress_tokens": 4}, {}),
        ({"max_new_tokens": 0, "repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"do_sample": True, "top_k": 50.5, "min_p": 0.1}, {"min_p": 0.1}),
    ],
    ids=str,
)
def test_invalid_options_in_a_models_file_are_left_out_with_a_warning(config: dict[str, Any], left: dict[str, Any]) -> None:
    own = OwnOptions.read(config).within(1000)
    assert own.options == GenerationOptions.from_mapping(left)
    (bad,) = set(config) - set(left) - ({"do_sample"} if config.get("do_sample") is True else set())
    (warning,) = own.warnings
    assert warning.startswith(f"generation_config.json: {bad} is left out: ")


def test_whole_floats_in_a_models_file_are_whole_numbers() -> None:
    own = OwnOptions.read({"do_sample": True, "top_k": 50.0, "max_new_tokens": 20.0, "suppress_tokens": [3.0, 4]})
    assert own == OwnOptions(GenerationOptions(max_tokens=20, sampling=SamplingOptions(top_k=50, banned_tokens=(3, 4))))


# ---- spellings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mapping", "options"),
    [
        ({}, GenerationOptions()),
        ({"max_new_tokens": 5}, GenerationOptions(max_tokens=5)),
        ({"max_completion_tokens": 5, "max_tokens": 5}, GenerationOptions(max_tokens=5)),
        ({"do_sample": False}, GenerationOptions(sampling=SamplingOptions(temperature=0.0))),
        ({"do_sample": True, "temperature": 0.5}, GenerationOptions(sampling=SamplingOptions(temperature=0.5))),
        ({"do_sample": False, "temperature": 0}, GenerationOptions(sampling=SamplingOptions(temperature=0.0))),
        ({"stop": "END"}, GenerationOptions(stop=("END",))),
        ({"stop_strings": ["a", "b"]}, GenerationOptions(stop=("a", "b"))),
        ({"logprobs": True, "top_logprobs": 4}, GenerationOptions(top_k=4)),
        ({"logprobs": 3}, GenerationOptions(top_k=3)),
        ({"logprobs": False}, GenerationOptions(top_k=0)),
        ({"top_k": 7}, GenerationOptions(sampling=SamplingOptions(top_k=7))),
        ({"top_k": 7, "sampling": {"top_k": 3}}, GenerationOptions(top_k=7, sampling=SamplingOptions(top_k=3))),
        ({"sampling": SamplingOptions(top_k=3)}, GenerationOptions(sampling=SamplingOptions(top_k=3))),
        ({"logit_bias": {"12": -5, "3": 1.5}}, GenerationOptions(sampling=SamplingOptions(logit_bias={12: -5, 3: 1.5}))),
        ({"bad_words_ids": [[3], [9]]}, GenerationOptions(sampling=SamplingOptions(banned_tokens=(3, 9)))),
        ({"repeat_penalty": 1.1}, GenerationOptions(sampling=SamplingOptions(repetition_penalty=1.1))),
        ({"repeat_last_n": 64}, GenerationOptions(sampling=SamplingOptions(penalty_window=64))),
        ({"frequency_penalty": None, "seed": 4}, GenerationOptions(seed=4)),
        ({"temperature": np.float32(0.5), "top_k": np.int64(3), "seed": np.uint64(7)},
         GenerationOptions(seed=7, sampling=SamplingOptions(temperature=0.5, top_k=3))),
        ({"eos_token_id": 2}, GenerationOptions(eos_token_ids=(2,))),
        ({"stop_token_ids": [2, 5], "eos_token_ids": (2, 5)}, GenerationOptions(eos_token_ids=(2, 5))),
        ({"response_format": {"type": "text"}}, GenerationOptions()),
        ({"response_format": {"type": "json_object"}}, GenerationOptions(grammar=Grammar.json_schema({"type": "object"}))),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}},
         GenerationOptions(grammar=Grammar.json_schema(SCHEMA))),
        ({"temp": 0.3}, GenerationOptions(sampling=SamplingOptions(temperature=0.3))),
    ],
    ids=str,
)  # fmt: skip
def test_spellings_of_other_libraries_are_accepted(mapping: dict[str, Any], options: GenerationOptions) -> None:
    assert GenerationOptions.from_mapping(mapping) == options


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({"max_new_token": 5}, "unknown option 'max_new_token': did you mean 'max_new_tokens'?"),
        ({"temprature": 1}, "did you mean 'temperature'?"),
        ({"sampling": {"topp": 1}}, "did you mean 'top_p'?"),
        ({"max_tokens": 5, "max_new_tokens": 6}, "max_tokens=5 and max_new_tokens=6 contradict each other"),
        ({"do_sample": False, "temperature": 0.7}, "do_sample=False and temperature=0.7 contradict each other"),
        ({"temperature": 0.7, "temp": 0.8}, "contradict"),
        ({"do_sample": True, "temperature": 0}, "do_sample=True and temperature=0 (greedy) contradict"),
        ({"temp": 0.0, "do_sample": True}, "do_sample=True and temp=0"),
        ({"response_format": "json"}, "response_format is {"),
        ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format is {"),
        ({"response_format": {"type": "json_object"}, "grammar": Grammar.regex("a")}, "contradict each other"),
        ({"eos_token_id": 2, "stop_token_ids": [3]}, "eos_token_id=2 and stop_token_ids=[3] contradict"),
        ({"response_format": {"type": "text"}, "grammar": Grammar.regex("a")}, "contradict each other"),
        ({"eos_token_id": "</s>"}, "eos_token_id is a sequence of token ids"),
        ({"do_sample": "yes"}, "do_sample is True or False"),
        ({"bad_words_ids": [[3, 4]]}, "only words of one token"),
        ({"logit_bias": {"a": 1}}, "its keys are token ids"),
        ({"logit_bias": 3}, "logit_bias is a dictionary"),
        ({"sampling": 3}, "sampling is a mapping"),
        ({"stop": ""}, "none of them empty"),
        ({"top_p": 2}, "top_p must be a number above 0 and at most 1"),
        ([], "options are a mapping"),
    ],
    ids=str,
)
def test_contradicting_and_unknown_options_are_refused(mapping: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        GenerationOptions.from_mapping(mapping)
    assert says in str(caught.value)


ENDS = AnswerEnds((2,), (5,), ("\nUser:",))


def test_eos_and_stops_of_model_and_format_are_shown_with_their_sources() -> None:
    # given a model with an eos, and a chat format with a token and a text at the end of turns
    plain = resolve_options(ends=ENDS)
    assert (plain.options.eos_token_ids, plain.options.stop) == ((2, 5), ("\nUser:",))
    assert (plain.sources["eos_token_ids"], plain.sources["stop"]) == ("model and format", "format")
    # then the caller's own stops are kept, and resolving twice changes nothing
    both = resolve_options({"temperature": 0.5}, preset={"stop": ["END", "\nUser:"]}, ends=ENDS)
    assert both.options.stop == ("END", "\nUser:")
    assert both.sources["stop"] == "preset"
    more = resolve_options({"stop": "END"}, ends=ENDS)
    assert (more.options.stop, more.sources["stop"]) == (("END", "\nUser:"), "call and format")
    assert resolve_options(more.options, ends=ENDS).options == more.options
    assert resolve_options(ends=AnswerEnds()).sources["eos_token_ids"] == "default"


@pytest.mark.parametrize(
    ("call", "eos", "stop"),
    [
        ({"ignore_eos": True}, None, ()),
        ({"eos_token_ids": (9,)}, (9,), ()),
        ({"grammar": Grammar.regex("a")}, None, ()),
        ({"resolve": False}, (2, 5), ()),
    ],
)
def test_a_call_that_decides_where_an_answer_ends_replaces_all_other_ends(call: Any, eos: Any, stop: Any) -> None:
    resolved = resolve_options(call, ends=ENDS)
    assert (resolved.options.eos_token_ids, resolved.options.stop) == (eos, stop)
    assert resolve_options(resolved.options, ends=ENDS).options == resolved.options


def test_a_grammar_of_the_call_replaces_the_ends_of_a_resolved_preset() -> None:
    preset = resolve_options(ends=ENDS).options
    resolved = resolve_options({"grammar": Grammar.regex("a")}, preset=preset, ends=ENDS)
    assert resolved.options.eos_token_ids is None
    assert resolved.sources["eos_token_ids"] == "call"


# ---- of two contradicting options the one of the lower layer is dropped ---------------------------------------------

FORM = Grammar.regex("a")


@pytest.mark.parametrize("off", [{"grammar": False}, {"response_format": {"type": "text"}}], ids=str)
def test_a_call_can_switch_off_the_sessions_grammar(off: dict[str, Any]) -> None:
    session = {"grammar": FORM, "grammar_prefix": 3}
    resolved = resolve_options(off, session=session, ends=ENDS)
    assert (resolved.options.grammar, resolved.sources["grammar"]) == (None, "call")
    assert resolved.options.grammar_prefix == 0
    assert resolved.options.eos_token_ids == (2, 5)  # it ends like any answer
    assert GenerationOptions.from_mapping(off) == GenerationOptions()
    assert resolve_options({"grammar": None}, session=session).options.grammar == FORM  # None: not given


def test_a_call_can_switch_off_the_sessions_speculation() -> None:
    session = {"speculative": {"method": "prompt_lookup"}}
    assert resolve_options({}, session=session).options.speculative is not None
    resolved = resolve_options({"speculative": False}, session=session)
    assert (resolved.options.speculative, resolved.sources["speculative"]) == (None, "call")


def test_another_grammar_resets_the_grammar_prefix() -> None:
    resolved = resolve_options({"grammar": Grammar.regex("b")}, session={"grammar": FORM, "grammar_prefix": 3})
    assert resolved.options.grammar_prefix == 0
    kept = resolve_options(GenerationOptions(grammar_prefix=2), session={"grammar": FORM})
    assert (kept.options.grammar, kept.options.grammar_prefix) == (FORM, 2)


@pytest.mark.parametrize("ends", [{"ignore_eos": True}, {"eos_token_ids": (9,)}], ids=str)
def test_between_a_grammar_and_other_ends_the_higher_layer_decides(ends: dict[str, Any]) -> None:
    (name,) = ends
    form = resolve_options(session={"grammar": FORM}, preset=ends)
    assert (form.options.grammar, form.sources[name]) == (FORM, "session")
    assert getattr(form.options, name) == getattr(GenerationOptions(), name)
    own = resolve_options(ends, session={"grammar": FORM})
    assert (own.options.grammar, own.sources["grammar"]) == (None, "call")
    assert getattr(own.options, name) == ends[name]
    with pytest.raises(GrammarError, match=name):
        resolve_options({**ends, "grammar": FORM})


def test_an_order_of_a_lower_layer_is_dropped_when_it_lacks_a_stage_of_a_higher_one() -> None:
    resolved = resolve_options({"top_k": 3}, session={"order": ("temperature",)}, preset={"order": ("top_k", "temperature")})
    assert (resolved.options.sampling.top_k, resolved.sources["sampling.top_k"]) == (3, "call")
    assert (resolved.options.sampling.order, resolved.sources["sampling.order"]) == (("top_k", "temperature"), "preset")
    assert resolve_options({"top_k": 3}, session={"order": ("temperature",)}).options.sampling.order == ORDER
    assert resolve_options({"top_k": 0}, session={"order": ("temperature",)}).sources["sampling.order"] == "session"
