"""/v1/embeddings, /tokenize and /detokenize: texts to vectors and to token ids, and back."""

from __future__ import annotations

import base64
from typing import Final

import numpy as np

from app.serve.chat import conversation, rendered
from app.serve.errors import ApiError
from app.serve.generation import listed_prompts, text_ids, token_text
from app.serve.schemas import (
    Detokenized,
    DetokenizeRequest,
    Embedding,
    EmbeddingRequest,
    Embeddings,
    Tokenized,
    TokenizeRequest,
    TokenizerInfo,
)
from app.serve.served_model import ServedModel
from runtime import LanguageModel

MOST_TEXTS: Final = 2048  # of one request, as in OpenAI's API
MOST_IDS: Final = 1 << 17  # of one text, or the context if longer: other requests wait meanwhile


async def embed(served: ServedModel, request: EmbeddingRequest) -> Embeddings:
    """A vector of length 1 for each text.

    Raises:
        ApiError: No texts or too many; ids that are no text; another number of dimensions.
    """
    model = await served.model_for(request.model)
    if request.dimensions not in (None, model.info.hidden_size):
        raise ApiError(f"vectors of this model have {model.info.hidden_size:,} dimensions", param="dimensions")
    given = listed_prompts(request.input, "input")
    if len(given) > MOST_TEXTS:
        raise ApiError(f"{len(given):,} texts are more than the {MOST_TEXTS:,} of one request", param="input")
    texts: list[str] = []
    tokens = 0
    for place, each in enumerate(given):
        param = f"input[{place}]"
        text = each if isinstance(each, str) else _text_of(model, each, param, "input")
        if not text:
            raise ApiError(f"{param} is empty: an empty text has no vector", param="input")
        ids = await text_ids(model, text, param)
        if not isinstance(each, str) and ids not in (each, [*ids[: len(ids) - len(each)], *each]):
            raise ApiError(f"{param}: these ids are not how a text is tokenised here; give the text", param="input")
        tokens += len(ids)
        texts.append(text)
    with served.admitted(model, max(tokens // len(texts), 1)):  # computed one at a time, and no KV stays
        vectors = await model.embed(texts, request.pooling)
    served.counts["embedded_texts"] += len(texts)
    data = [
        Embedding(place, vector.tolist() if request.encoding_format == "float" else _base64(vector))
        for place, vector in enumerate(vectors)
    ]
    return Embeddings(data, served.name, {"prompt_tokens": tokens, "total_tokens": tokens})


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


async def tokenize(served: ServedModel, request: TokenizeRequest) -> Tokenized:
    """The ids of a text, or of a conversation by the chat template.

    Raises:
        ApiError: Neither or both.
    """
    model = await served.model_for(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise ApiError("give one of prompt and messages", param="prompt")
    if request.messages is not None:
        messages = conversation(request.messages)
        ids = await rendered(model, messages, request.tools, add_generation_prompt=request.add_generation_prompt)
    else:
        ids = await text_ids(model, request.prompt or "", "prompt", add_special_tokens=request.add_special_tokens)
    texts = [token_text(model, token) for token in ids] if request.return_token_strs else None
    return Tokenized(len(ids), model.info.context_length, ids, texts)


async def tokenizer_info(served: ServedModel) -> TokenizerInfo:
    """What a client needs to use /tokenize in place of a tokenizer of its own."""
    model = await served.model()
    first = await model.tokenize_async("")
    bos = token_text(model, first[0]) if first else None
    eos = token_text(model, model.eos_token_ids[0]) if model.eos_token_ids else None
    return TokenizerInfo("Elsewise", bos, eos, eos, model.chat_template)


async def detokenize(served: ServedModel, request: DetokenizeRequest) -> Detokenized:
    """The text of ids; bytes that are no UTF-8 become U+FFFD."""
    model = await served.model_for(request.model)
    text = _text_of(model, request.tokens, "tokens", "tokens")
    pieces = [model.decode_token(token).hex() for token in request.tokens] if request.return_token_bytes else None
    return Detokenized(text, pieces)


def _text_of(model: LanguageModel, ids: list[int], what: str, param: str) -> str:
    most = max(model.info.context_length, MOST_IDS)
    if len(ids) > most:
        raise ApiError(f"{what}: {len(ids):,} ids are more than the {most:,} that are read at once; give fewer", param=param)
    return model.detokenize(ids)
