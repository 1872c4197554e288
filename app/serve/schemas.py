"""Request and response bodies in OpenAI's shapes, vLLM's extensions under vLLM's names, and the document of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from runtime import __version__

Count = Annotated[int, Meta(ge=0)]
Token = Annotated[int, Meta(ge=0)]
Texts = str | list[str]
Prompts = str | list[str | Token | list[Token]]  # a text, token ids, or a list of either
MOST_CHOICES = 1024  # prompts times n
MOST_CHOSEN_IDS = 128  # of `logprob_token_ids`, as in vLLM


class StreamOptions(Struct, forbid_unknown_fields=True):
    """What a stream carries beside its pieces."""

    include_usage: bool = False
    include_obfuscation: bool = False  # accepted for OpenAI's client; nothing is padded


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`: exactly one form."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # llguidance's Lark
    json_object: bool | None = None


class SamplingRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """What completions and chat completions have in common."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # drawing
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 and -1 are off
    min_p: float | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    # ending
    stop: Texts | None = None
    stop_token_ids: list[Token] | None = None
    ignore_eos: bool | None = None
    # the form of the answer
    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    # what is reported of tokens
    prompt_logprobs: int | None = None
    logprob_token_ids: Annotated[list[Token], Meta(max_length=MOST_CHOSEN_IDS)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    # how it is worked on
    priority: int | None = None  # below 0 before the others, above 0 after them
    cache_salt: Annotated[str, Meta(min_length=1)] | None = None  # requests of another salt do not find what it caches
    # accepted and without effect on the answer
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # known, and refused where they would change the answer (`app.serve.generation.UNSUPPORTED`)
    min_tokens: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    add_special_tokens: bool | None = None


class CompletionRequest(SamplingRequest, kw_only=True):
    """POST /v1/completions."""

    prompt: Prompts = msgspec.field(default_factory=list)
    max_tokens: Count | None = None
    logprobs: Annotated[int, Meta(ge=-1)] | None = None
    echo: bool | None = None
    suffix: str | None = None


class ChatRequest(SamplingRequest, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=-1)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    # refused where they would change the answer
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    modalities: list[str] | None = None
    functions: list[Any] | None = None
    function_call: Any = None


class EmbeddingRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/embeddings."""

    input: Prompts
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    pooling: Literal["last", "mean", "max", "cls"] = "last"
    user: str | None = None


class TokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /tokenize: of a `prompt`, or of `messages` by the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /detokenize."""

    tokens: list[Token]
    model: str | None = None
    return_token_bytes: bool = False  # an extension: a token may be a part of a character


# ---- answers -----------------------------------------------------------------------------------------------------


class PromptTokensDetails(Struct):
    """Of the prompts' tokens, those that the cache held."""

    cached_tokens: int = 0


class Usage(Struct):
    """Tokens of a request; `prompt_tokens` counts each prompt once, `completion_tokens` every choice."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails = msgspec.field(default_factory=PromptTokensDetails)


PositionLogprobs = dict[str, dict[str, Any]] | None  # by token id: logprob, rank, decoded_token


class CompletionLogprobs(Struct):
    """Log-probabilities by position; natural logarithms of the raw distribution."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Struct, omit_defaults=True):
    """One continuation, or a piece of it in a stream."""

    index: int | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: CompletionLogprobs | UnsetType | None = UNSET
    finish_reason: str | UnsetType | None = UNSET
    stop_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[PositionLogprobs] | None = None


class Completion(Struct):
    """Answer of /v1/completions; in a stream each chunk has this shape."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: str = "text_completion"
    usage: Usage | UnsetType | None = UNSET


class ChatLogprob(Struct, omit_defaults=True):
    """One token of a chat answer."""

    token: str | UnsetType = UNSET
    logprob: float | UnsetType = UNSET
    bytes: list[int] | UnsetType = UNSET
    top_logprobs: list[ChatLogprob] | UnsetType = UNSET


class ChatLogprobs(Struct):
    """Every token of a chat answer or of a chunk."""

    content: list[ChatLogprob]


class FunctionCall(Struct):
    """A call's name and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCallEntry(Struct, omit_defaults=True):
    """A tool call; `index` in streams alone."""

    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionCall | UnsetType = UNSET
    index: int | UnsetType = UNSET


class ChatMessage(Struct, omit_defaults=True):
    """An assistant's message, or what a chunk adds to it."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning: str | None = None  # vLLM's name
    reasoning_content: str | None = None  # the same under its older name
    tool_calls: list[ToolCallEntry] | None = None


class ChatChoice(Struct, omit_defaults=True):
    """One answer: `message` whole, `delta` in streams."""

    index: int | UnsetType = UNSET
    message: ChatMessage | UnsetType = UNSET
    delta: ChatMessage | UnsetType = UNSET
    logprobs: ChatLogprobs | UnsetType | None = UNSET
    finish_reason: str | UnsetType | None = UNSET
    stop_reason: str | None = None
    token_ids: list[int] | None = None


class ChatCompletion(Struct, omit_defaults=True):
    """Answer of /v1/chat/completions; in a stream each chunk has this shape."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    object: str | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: list[PositionLogprobs] | None = None
    prompt_token_ids: list[int] | None = None


class Embedding(Struct):
    """One vector: numbers, or base64 of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class Embeddings(Struct):
    """Answer of /v1/embeddings."""

    data: list[Embedding]
    model: str
    usage: dict[str, int]
    object: str = "list"


class Tokenized(Struct):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(Struct, omit_defaults=True):
    """Answer of /detokenize; the bytes of each token are hexadecimal."""

    prompt: str
    token_bytes: list[str] | None = None


class TokenizerInfo(Struct):
    """Answer of /tokenizer_info; lm-evaluation-harness reads it in place of a tokenizer of its own."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None


class ModelCard(Struct):
    """One entry of /v1/models."""

    id: str
    created: int
    max_model_len: int
    root: str
    owned_by: str = "elsewise"
    object: str = "model"
    parent: str | None = None
    vocab_size: int = 0
    tokenizer_digest: str = ""  # `LanguageModel.tokenizer_digest`: a client with the same tokenizer can prove it
    eos_token_ids: tuple[int, ...] = ()


class ModelList(Struct):
    """Answer of /v1/models."""

    data: list[ModelCard]
    object: str = "list"


class ErrorDetail(Struct):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(Struct):
    """Body of every answer that is no success."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class Operation:
    """One path: a POST of JSON, or a GET if it has no body."""

    path: str
    handler: Callable[..., Awaitable[Any]]  # takes the served model, and the request if there is a body; its docstring is shown
    body: type[Struct] | None = None
    answer: type[Struct] | None = None  # None: plain text or an object without a schema
    streams: bool = False  # whether ``stream: true`` makes its answer server-sent events
    media_type: str = "application/json"


def document(operations: Sequence[Operation]) -> bytes:
    """The document as JSON."""
    types: list[Any] = [each for one in operations for each in (one.body, one.answer) if each is not None]
    schemas, components = msgspec.json.schema_components([*types, ErrorBody], ref_template="#/components/schemas/{name}")
    by_type = dict(zip([*types, ErrorBody], schemas, strict=True))
    refused = {"description": "refused", "content": {"application/json": {"schema": by_type[ErrorBody]}}}
    paths: dict[str, Any] = {}
    for one in operations:
        content: dict[str, Any] = {}
        if one.answer is not None:
            content["application/json"] = {"schema": by_type[one.answer]}
        if one.streams:
            content["text/event-stream"] = {"schema": {"type": "string"}}
        operation: dict[str, Any] = {
            "summary": (one.handler.__doc__ or "").partition("\n")[0],
            "responses": {"200": {"description": "done", "content": content}, "default": refused},
        }
        if one.body is not None:
            body = {"application/json": {"schema": by_type[one.body]}}
            operation["requestBody"] = {"required": True, "content": body}
        paths[one.path] = {"get" if one.body is None else "post": operation}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Elsewise", "version": __version__},
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{}, {"key": []}],
        }
    )
