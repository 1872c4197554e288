"""`connect`: makes a model from a server's address, after finding out the server's kind and abilities."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, Final

import msgspec

from runtime.aio import LoopThread, blocking, settled
from runtime.api.language_model import LanguageModel
from runtime.backends.facts import digest
from runtime.errors import InvalidRequestError, ModelMissingError, RemoteError, RuntimeFault, UnsupportedFeatureError
from runtime.info import UNKNOWN_CONTEXT, AdapterInfo, ModelInfo
from runtime.options.checking import nearest
from runtime.options.load import LoadOptions
from runtime.remote.dialect import Abilities, Probe, RemoteModel
from runtime.remote.dialects import BY_NAME, DIALECTS
from runtime.remote.dialects.openai import Dialect
from runtime.remote.http import IDLE_SECONDS, HttpClient, ServerAddress
from runtime.remote.operations import RemoteOperations
from runtime.remote.saved import Connection, check_connection_name, keep_connection
from runtime.remote.text import RemoteText, choose_text
from runtime.remote.transport import RemoteTransport, end_soon
from runtime.session.manifest import tokenizer_digest
from runtime.transport.base import Transport

_TEXT_OPTIONS: Final = ("chat_format", "chat_template", "chat_template_file", "add_bos", "context_length")
_PROBE_SECONDS: Final = 10.0

log = logging.getLogger(__name__)


async def connect_async(
    base_url: str,
    model: str | None = None,
    *,
    api_key: str | None = None,
    dialect: str | None = None,
    tokenizer: str | Path | None = None,
    cache_salt: str = "",
    sampling: str = "server",
    plain_http: bool = False,
    idle_seconds: float = IDLE_SECONDS,
    **options: Any,
) -> LanguageModel:
    """A model on a server: vLLM, another Elsewise, or any server with OpenAI's completions.

    `ModelInfo.warnings` lists the abilities that the server lacks; the members that need them refuse, and no value is made up.
    The model is ready when this returns: it has generated a token.

    Args:
        base_url: The server, with or without ``/v1``.
        model: The model's id on the server; None: the only one.
        api_key: Sent only to this host; never logged, and never part of an error.
        dialect: The kind of server; None detects it.
        tokenizer: A folder or a name on the shelf, or "server". None takes a tokenizer of the shelf that has one of the model's
            names and is proven the same, otherwise the server's.
        cache_salt: Separates the server's prefix cache from that of other clients (vLLM, Elsewise).
        sampling: "server" draws on the server and streams. "here" draws with the sampler of this machine, one request per
            token: the same tokens that a local model draws with the seed. It needs enough alternatives from the server: one
            for greedy, `top_k` of them with a `top_k`, else the whole vocabulary.
        plain_http: Allows unencrypted HTTP to another machine.
        idle_seconds: Seconds without any data after which a request fails.
        options: `chat_format`, `chat_template`, `chat_template_file`, `add_bos` and `context_length` of `LoadOptions`.

    Raises:
        InvalidRequestError: An unknown option, no address, unencrypted HTTP to another machine, or another tokenizer.
        RemoteError: No server answers there, it refuses the key, or it is of no known kind.
        ModelMissingError: The server has no such model, or several and none was named.
        UnsupportedFeatureError: Neither this machine nor the server has a tokenizer; or `sampling` is "here" and the server
            takes or returns text instead of token ids.
    """
    address = ServerAddress.parse(base_url, plain_http=plain_http)
    foreign = [name for name in options if name not in _TEXT_OPTIONS]
    if foreign:
        known = ["api_key", "dialect", "tokenizer", "cache_salt", "sampling", "plain_http", "idle_seconds", *_TEXT_OPTIONS]
        raise InvalidRequestError(f"unknown option {foreign[0]!r} of connect: {nearest(foreign[0], known)}")
    if dialect is not None and dialect not in BY_NAME:
        raise InvalidRequestError(f"unknown dialect {dialect!r}: {nearest(dialect, BY_NAME)}")
    if api_key is not None and not (isinstance(api_key, str) and api_key.isascii() and api_key.isprintable()):
        raise InvalidRequestError("api_key is one line of printable ASCII characters; what was given is not shown")
    if sampling not in ("server", "here"):
        raise InvalidRequestError(f"sampling is 'server' or 'here', not {sampling!r:.60}")
    load = LoadOptions.from_mapping(options)
    client = HttpClient(address, (api_key or "").strip(), idle=idle_seconds)
    thread = LoopThread("elsewise-remote")
    future = thread.submit(_connected(thread, client, model, dialect, tokenizer, cache_salt, sampling, load))
    try:
        return LanguageModel(await settled(future))
    except BaseException:
        future.cancel()
        end_soon(thread, client)
        raise


connect = blocking(connect_async)
connect.__name__ = connect.__qualname__ = "connect"


def add_connection(connection: Connection, key: str = "") -> tuple[ModelInfo, str]:
    """Connects once as a test, then stores the connection under its name and the key in the keychain.

    Args:
        connection: The connection; it replaces an earlier one of the same name.
        key: The server's key; empty: the stored key, or that of the environment.

    Returns:
        The model, and the name of the keychain, empty where no key was given.

    Raises:
        RuntimeFault: As for `connect` and `keep_connection`; nothing was stored.
    """
    check_connection_name(connection.name)
    given = {**connection.arguments(), **({"api_key": key} if key else {})}
    with connect(**given) as remote:
        info = remote.info
    return info, keep_connection(connection, key)


async def _connected(
    thread: LoopThread,
    client: HttpClient,
    model: str | None,
    named: str | None,
    tokenizer: str | Path | None,
    salt: str,
    sampling: str,
    options: LoadOptions,
) -> Transport:
    probe = await _probe(client)
    dialect, version = _recognised(client, probe, named)
    facts = dialect.facts(probe, _chosen_model(client, probe, model))
    abilities = await dialect.abilities(client, facts, probe)
    if sampling == "here" and not (abilities.token_prompts and abilities.token_ids):
        raise UnsupportedFeatureError(
            f"{client.address.host} has prompts and tokens as text: no draw from it is exact; connect with sampling='server'"
        )
    text = await choose_text(dialect, client, facts, abilities, tokenizer=tokenizer, options=options)
    info = _info(client.address, dialect, version, facts, abilities, text, options)
    if salt and not abilities.cache_salt:
        unsalted = f"{dialect.name} at {client.address.host} takes no cache_salt: its prefix cache is shared with other clients"
        info = replace(info, warnings=(*info.warnings, unsalted))
    shown = client.without_key(facts.model)
    log.info("connected to %s at %s (%s %s)", shown, client.address.url, dialect.name, version)
    operations = RemoteOperations(client, dialect, facts, abilities, text, info, salt, sampling == "here")
    return RemoteTransport(thread, client, operations)


async def _probe(client: HttpClient) -> Probe:
    """The introspection pages that the server has.

    Raises:
        RuntimeFault: No page could be read; or ``/v1/models`` could not, and some page failed otherwise than by its absence.
    """
    paths = tuple(dict.fromkeys(("/v1/models", *(page for dialect in DIALECTS for page in dialect.pages))))
    found = await asyncio.gather(*(_page(client, path) for path in paths))
    pages = {path: page for path, page in zip(paths, found, strict=True) if not isinstance(page, RuntimeFault)}
    faults = [page for page in found if isinstance(page, RuntimeFault)]
    serious = [fault for fault in faults if not (isinstance(fault, RemoteError) and fault.reason in ("missing", "server"))]
    if not pages or (serious and "/v1/models" not in pages):
        raise (serious or faults)[0]
    return Probe(pages)


async def _page(client: HttpClient, path: str) -> Any:
    try:
        return msgspec.json.decode(await client.get(path, within=_PROBE_SECONDS))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return client.wrong(f"answers {path} with what is no JSON")
    except RuntimeFault as fault:
        return fault


def _recognised(client: HttpClient, probe: Probe, named: str | None) -> tuple[Dialect, str]:
    if named is not None:
        return BY_NAME[named], BY_NAME[named].recognise(probe) or ""
    for dialect in DIALECTS:
        version = dialect.recognise(probe)
        if version is not None:
            return dialect, version
    raise client.wrong("answers, but lists no models (/v1/models)")


def _chosen_model(client: HttpClient, probe: Probe, model: str | None) -> str:
    ids = [entry["id"] for entry in probe.models]
    if model is None:
        bases = [entry["id"] for entry in probe.models if not entry.get("parent")] or ids
        if len(bases) == 1:
            return str(bases[0])
        some = client.without_key(", ".join(ids[:20])) or "none"
        raise ModelMissingError(f"{client.address.host} has {len(ids)} models: name one of {some}")
    if model in ids or not ids:
        return model
    known = client.without_key(nearest(model, ids))
    raise ModelMissingError(f"{client.address.host} has no model {model!r:.100}: {known}")


def _info(
    address: ServerAddress,
    dialect: Dialect,
    version: str,
    facts: RemoteModel,
    abilities: Abilities,
    text: RemoteText,
    options: LoadOptions,
) -> ModelInfo:
    context = facts.context or UNKNOWN_CONTEXT
    server = f"{dialect.name} at {address.host}"
    digest_of_text = text.facts.tokenizer_digest or tokenizer_digest(text.facts.byte_vocab)
    settings: dict[str, Any] = {
        "base_url": address.url,
        "dialect": dialect.name,
        "server_version": version,
        "model": facts.model,
        "tokenizer": "local" if text.local else "server",
        "alternatives": "all" if abilities.full_vector else abilities.alternatives,
        "add_bos": options.add_bos,
    }
    unknown_context = () if facts.context else (f"{server} does not say how long its context is",)
    return ModelInfo(
        name=f"{PurePath(facts.model).name if facts.model.startswith('/') else facts.model} at {address.host}",
        backend=dialect.name,
        device=address.host,
        dtype="",
        architecture="",
        layers=0,
        heads=0,
        kv_heads=0,
        hidden_size=0,
        vocab_size=text.vocab,
        parameters=0,
        quantisation=None,
        attention_kinds=(),
        context_length=min(context, options.context_length or context),
        has_template=text.facts.chat_template is not None,
        kv_bytes_per_token=0,
        kv_fingerprint=digest("remote", address.url, facts.model, version),
        model_fingerprint=digest("remote text", facts.model, digest_of_text),
        options=settings,
        capabilities=abilities.labels(),
        warnings=(*unknown_context, *abilities.warnings(server), *text.warnings),
        template_digest=text.template_digest,
        adapters=tuple(
            AdapterInfo(name, "lora", address.url, facts.model, 0, 0, 0, True, 0, digest("remote", address.url, name))
            for name in facts.adapters
        ),
        whole_context=facts.context,
    )
