"""Well-known names of other libraries for what is no option of a generation here: where it is asked for instead."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from runtime.options.load import LoadOptions

_BEAMS = "beam search is a call of its own: model.beam_generate(ids, BeamOptions(width=...))"
_MANY = "several answers to one prompt are model.continue_many(ids, n, options)"
_TOOLS = "a prompt tells the model of them: model.render_chat(messages, tools=...); parse_tool_calls reads the answer"
_STREAM = "every answer is streamed: iterate over model.generate(ids, options); model.complete gives the whole text"
_PROMPT = "what is asked stands before the options: model.generate(ids, options), model.complete(text or messages, options)"
_LEAST = "no least length can be asked for; ignore_eos=True goes on to max_tokens"
_SCORE = "model.score(ids) has what the model thinks of a prompt's tokens"
_GUESSES = "speculative=SpeculativeOptions(...), or a mapping of its names, turns on speculative decoding"
_SCHEMA = "a JSON schema is grammar=Grammar.json_schema(...), or a response_format"

_PLACES: Final = {
    **dict.fromkeys(("num_beams", "beam_width", "beam_size", "beams", "use_beam_search", "num_beam_groups"), _BEAMS),
    **{
        name: f"it belongs to beam search: model.beam_generate(ids, BeamOptions({name}=...))"
        for name in ("length_penalty", "early_stopping")
    },
    **dict.fromkeys(("n", "num_return_sequences", "best_of"), _MANY),
    **dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"), _TOOLS),
    **dict.fromkeys(("stream", "stream_options", "streamer"), _STREAM),
    **dict.fromkeys(("prompt", "messages", "inputs", "input_ids", "system", "system_prompt"), _PROMPT),
    **dict.fromkeys(("min_length", "min_new_tokens", "min_tokens"), _LEAST),
    "max_length": "it counts the prompt too; max_tokens counts the answer's tokens alone",
    **dict.fromkeys(("echo", "prompt_logprobs"), _SCORE),
    **dict.fromkeys(("prompt_lookup_num_tokens", "num_assistant_tokens", "num_draft_tokens"), _GUESSES),
    "assistant_model": "a draft model is loaded with the model: load(..., draft_model=...)",
    **dict.fromkeys(("use_cache", "cache_prompt"), "the cache is switched off for a whole model: load(..., cache=False)"),
    **dict.fromkeys(("guided_json", "json_schema", "schema"), _SCHEMA),
    **dict.fromkeys(("guided_regex", "regex"), "a regex is grammar=Grammar.regex(...)"),
    **dict.fromkeys(("guided_grammar", "lark"), "a Lark grammar is grammar=Grammar.lark(...)"),
    **dict.fromkeys(("lora", "lora_request"), "adapters=[(name, scale), ...] names the loaded ones that this request is under"),
    "greedy": "temperature=0 is greedy",
    "logits_processor": "one's own choice of tokens is a session's: model.open_session(), its logprobs and advance",
    "model": "a model is loaded first: load(model)",
}
_AT_LOAD: Final = frozenset(f.name for f in fields(LoadOptions))


def elsewhere(name: object) -> str | None:
    """Where to ask for what another library calls so; None where no such name is known."""
    if not isinstance(name, str):
        return None
    plain = name.strip().replace("-", "_").casefold()
    if plain in _AT_LOAD:
        return f"it is decided when a model is loaded: load(..., {plain}=...)"
    return _PLACES.get(plain)
