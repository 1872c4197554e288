"""The sample session: recorded from SmolLM2 with every probability, read-only, usable without a model."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from app.workbench.prompt.recorder import chunk
from app.workbench.refusals import intact
from app.workbench.tree.runs import content_of
from runtime import StageTable, TokenRun, texts_of
from storage import NewNode, SessionStore

FILE = "sample/session.json"
PUT_SETTING = "sample"  # the setting that it was put into the store once


async def ensure_sample(store: SessionStore) -> int:
    """The id of the sample session, which is put into the store if it is missing."""
    for row in await store.sessions():
        if row.is_sample:
            return row.id
    return await put_sample(store, recorded())


async def first_sample(store: SessionStore) -> int | None:
    """The id of the sample session at a start of the app: put into the store once, None if it was deleted since."""
    if await intact(store.setting(PUT_SETTING)) is None:
        found = await ensure_sample(store)
        await store.set_setting(PUT_SETTING, True)
        return found
    return next((row.id for row in await store.sessions() if row.is_sample), None)


def recorded() -> dict[str, Any]:
    """The shipped sample."""
    import importlib.resources  # for the first start only
    import json

    shipped: dict[str, Any] = json.loads(importlib.resources.files("resources").joinpath(FILE).read_text("utf-8"))
    return shipped


async def put_sample(store: SessionStore, session: dict[str, Any]) -> int:
    """Writes a recorded session into the store."""
    session_id = await store.create_session(session["title"], is_sample=True)
    ids: list[int] = []
    for node in session["nodes"]:
        run = run_from(node["tokens"])
        parent = node["parent"]
        new = NewNode(
            session_id,
            None if parent is None else ids[parent],
            node["role"],
            text=content_of(run),
            at_token=node["at_token"],
            at_byte=node["at_byte"],
            turn_start=node["turn_start"],
            finish_reason=node["finish_reason"],
            stats=node["stats"],
        )
        ids.append(await store.add_node(new, chunk(run, session["fingerprint"])))
    await store.set_current(session_id, ids[session["current"]])
    tokens = [b""] * (1 + max(int(i) for i in session["vocabulary"]))
    for token, data in session["vocabulary"].items():
        tokens[int(token)] = bytes.fromhex(data)
    if await intact(store.setting("vocabulary")) is None:
        await store.save_vocabulary(session["fingerprint"], tokens)
        await store.set_setting("vocabulary", session["fingerprint"])
    return session_id


def run_from(tokens: dict[str, Any]) -> TokenRun:
    """JSON columns as a run."""

    def column(name: str, kind: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.array([np.nan if v is None else v for v in tokens[name]], kind)

    n = len(tokens["ids"])
    token_bytes = tuple(bytes.fromhex(data) for data in tokens["bytes"])
    stages = {name: _unpacked(column) for name, column in tokens.get("stages", {}).items()}
    if stages:
        top_ids, top_logprobs = stages.pop("top_ids"), stages.pop("top_logprobs")
    else:
        top_ids = np.array(tokens["top_ids"], np.int32).reshape(n, -1)
        top_logprobs = np.array(tokens["top_logprobs"], np.float32).reshape(n, -1)
    return TokenRun(
        ids=column("ids", np.int32),
        token_bytes=token_bytes,
        texts=texts_of(token_bytes),
        logprob=column("logprob", np.float32),
        rank=column("rank", np.int32),
        entropy=column("entropy", np.float32),
        top_ids=top_ids,
        top_logprobs=np.where(top_ids < 0, -np.inf, top_logprobs).astype(np.float32),
        covered_mass=column("covered_mass", np.float32),
        origin=column("origin", np.uint8),
        finish=column("finish", np.uint8),
        draw=column("draw", np.float32),
        stages=StageTable.from_columns(stages, top_ids, top_logprobs),
    )


def _unpacked(packed: list[Any]) -> npt.NDArray[Any]:
    """An array from its dtype, shape and bytes."""
    dtype, shape, data = packed
    return np.frombuffer(zlib.decompress(base64.b85decode(data)), dtype).reshape(shape)
