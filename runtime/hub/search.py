"""Searches models on a hub; looks up owners of tokens. In the child process only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from huggingface_hub import constants, get_session
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]  # at run time only

from runtime.errors import DownloadError
from runtime.hub.child_protocol import HubId, HubModel
from runtime.hub.repository import check_suitable, kind_of, licence_of, missing_for_model
from runtime.hub.responses import LOOK_UP_SECONDS, as_download_errors, with_retries
from runtime.loading.config import describe

_WANTED = ("config", "downloads", "gated", "library_name", "likes", "private", "safetensors", "siblings", "tags")
_BITS = re.compile(r"([1-8])-bit")
_WORD_BITS = 32  # mlx packs quantised weights into words of this size


def search(
    query: str, limit: int, wait: Callable[[float, str], None], *, endpoint: str | None = None, token: str = ""
) -> tuple[HubModel, ...]:
    """Text models that match a search, the most downloaded first.

    Args:
        query: Words.
        limit: Number of results at most.
        wait: Waits for a number of seconds; the text is the reason.
        endpoint: The hub's address; None: huggingface_hub's choice.
        token: Sent with the request; empty for none.

    Raises:
        DownloadError: The hub cannot be reached, refuses, or sends an unreadable answer.
    """
    asked = {"search": query, "pipeline_tag": "text-generation", "sort": "downloads", "limit": limit, "expand": list(_WANTED)}
    found = with_retries(lambda: _get("api/models", asked, endpoint, token), wait)
    if not isinstance(found, list):
        raise DownloadError(f"the hub's answer cannot be read (a {type(found).__name__}, no list); try again later")
    models = (_model(entry) for entry in found[:limit] if isinstance(entry, Mapping))
    return tuple(model for model in models if model is not None)


def owner_of_token(token: str, wait: Callable[[float, str], None], *, endpoint: str | None = None) -> str:
    """The owner of a token.

    Raises:
        DownloadError: There is no token, or the hub does not know it ("denied"); otherwise as in `search`.
    """
    if not token:
        raise DownloadError("no token is kept; keep one with `elsewise models login`", "denied")
    try:
        answer = with_retries(lambda: _get("api/whoami-v2", {}, endpoint, token), wait)
    except DownloadError as fault:
        if fault.reason != "denied":
            raise
        page = f"{endpoint or constants.ENDPOINT}/settings/tokens"
        raise DownloadError(f"the hub does not know this token; make one on {page}", "denied") from fault
    name = answer.get("name") if isinstance(answer, Mapping) else None
    if not isinstance(name, str):
        raise DownloadError("the hub's answer cannot be read (it has no name); try again later")
    return name[:100]


def _get(route: str, parameters: Mapping[str, Any], endpoint: str | None, token: str) -> Any:
    """Sends one request; without a network, `HfApi.list_models` would retry silently for 23 seconds."""
    where = f"{endpoint or constants.ENDPOINT}/{route}"
    headers = build_hf_headers(token=token or False, library_name="elsewise")
    with as_download_errors(where):
        response = get_session().get(where, params=dict(parameters), headers=headers, timeout=LOOK_UP_SECONDS)
        hf_raise_for_status(response)
        return response.json()


def _model(entry: Mapping[str, Any]) -> HubModel | None:
    """The search result of an entry, whose values may be of any type; None where its name is not an id."""
    try:
        source = HubId.parse(_text(entry, "id")).repository
    except DownloadError:
        return None
    names = {name for file in _list(entry.get("siblings")) if isinstance(file, Mapping) and (name := _text(file, "rfilename"))}
    tags = {tag for tag in _list(entry.get("tags")) if isinstance(tag, str)}
    config = _config(entry, tags)
    kind, problem, found = kind_of(names), "", describe(config)
    if kind == "model":
        problem = missing_for_model(names) or _unsuitable(source, config)
    counts = entry.get("safetensors")
    return HubModel(
        source=source,
        kind=kind,
        backends=() if problem else ("hf", "mlx") if kind == "adapter" else found.backends,
        problem=problem,
        parameters=_parameters(counts, config) if isinstance(counts, Mapping) else None,
        quantisation=found.quantisation,
        licence=licence_of(entry.get("tags")),
        gated=entry.get("gated") not in (None, False),
        private=entry.get("private") is True,
        downloads=_count(entry.get("downloads")),
        likes=_count(entry.get("likes")),
    )


def _unsuitable(source: str, config: Mapping[str, Any]) -> str:
    if not config.get("model_type"):
        return "the hub does not say what it is; a dry run looks it up"
    try:
        check_suitable(source, config)
    except DownloadError as fault:
        return str(fault).removeprefix(f"{source}: ").removeprefix(f"{source}/config.json: ")[:300]
    return ""


def _config(entry: Mapping[str, Any], tags: set[str]) -> dict[str, Any]:
    """The part of config.json that the hub lists, with mlx's ``quantization``, which it leaves out."""
    listed = entry.get("config")
    config = dict(listed) if isinstance(listed, Mapping) else {}
    packed = config.get("quantization_config")
    bits = packed.get("bits") if isinstance(packed, Mapping) and not packed.get("quant_method") else None
    if bits is None:
        bits = next((int(hit[1]) for tag in sorted(tags) if (hit := _BITS.fullmatch(tag))), None)
    if isinstance(bits, int) and bits > 0 and ("mlx" in tags or entry.get("library_name") == "mlx"):
        config.setdefault("quantization", {"bits": bits, "group_size": 64})
    return config


def _parameters(counts: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    kinds = counts.get("parameters")
    packed = config.get("quantization")
    if isinstance(packed, Mapping) and isinstance(kinds, Mapping) and (words := _count(kinds.get("U32"))):
        bits = _count(packed.get("bits"))
        return words * _WORD_BITS // bits if bits else None
    return _count(counts.get("total")) or None


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 62 else 0


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(entry: Mapping[str, Any], name: str) -> str:
    found = entry.get(name)
    return found if isinstance(found, str) else ""
