"""Options of a model's generation_config.json. The file is optional; unacceptable values are left out with a warning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from runtime.errors import InvalidRequestError
from runtime.options.generation import GenerationOptions

FILE = "generation_config.json"
_ALWAYS = ("repetition_penalty", "suppress_tokens", "bad_words_ids", "stop_strings", "max_new_tokens")
_SAMPLED = ("temperature", "top_k", "top_p", "min_p", "typical_p")  # read only if the file has ``do_sample: true``
# Fields that change an answer of transformers' `generate` and have no option here, with the values that switch them off.
_NOT_FOLLOWED: dict[str, tuple[Any, ...]] = {
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "top_h": (1,),
    "guidance_scale": (1,),
    "sequence_bias": ({}, []),
    "exponential_decay_length_penalty": (),
}


@dataclass(frozen=True, slots=True)
class OwnOptions:
    """The options of a model's file."""

    options: GenerationOptions = field(default_factory=GenerationOptions)  # from the accepted fields
    warnings: tuple[str, ...] = ()  # one sentence for each field that is not accepted

    @classmethod
    def read(cls, config: object) -> Self:
        """Reads the file's content. ``do_sample: false`` is greedy; without `do_sample` the sampling options are ignored."""
        if not isinstance(config, Mapping):
            return cls()
        given = {name: value for name, value in config.items() if value is not None}
        sampled = given.get("do_sample")
        names = ("do_sample", *(_SAMPLED if sampled is True else ()), *_ALWAYS)
        taken: dict[str, Any] = {}
        warnings: list[str] = []
        for name in names:
            if name in given:
                more = taken | {name: _whole(given[name])}
                try:
                    GenerationOptions.from_mapping(more)
                    taken = more
                except InvalidRequestError as fault:
                    warnings.append(f"{FILE}: {name} is left out: {fault}")
        warnings += [
            f"{FILE}: {name}={given[name]!r:.60} is not followed: there is no such option here"
            for name, off in _NOT_FOLLOWED.items()
            if name in given and given[name] not in off
        ]
        return cls(GenerationOptions.from_mapping(taken), tuple(warnings))

    def within(self, vocab: int) -> OwnOptions:
        """The options for a vocabulary of this size, without banned tokens if one of them is outside."""
        try:
            self.options.sampling.check(vocab)
        except InvalidRequestError as fault:  # only banned tokens are ids
            sampling = replace(self.options.sampling, banned_tokens=None)
            warning = f"{FILE}: suppress_tokens is left out: {fault}"
            return OwnOptions(replace(self.options, sampling=sampling), (*self.warnings, warning))
        return self


def _whole(value: Any) -> Any:
    """Turns whole numbers written as floats (50.0) into ints, in lists too."""
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
