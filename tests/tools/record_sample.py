"""Records the sample session from SmolLM2 through the app's own use cases: ``make sample``."""

from __future__ import annotations

import asyncio
import base64
import importlib.resources
import json
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from app.paths import DataFolder
from app.supervisor import Supervisor
from app.workbench import AppWorkbench, Services
from app.workbench.tree.reading import load_whole
from app.workbench.tree.session import WholeSession
from runtime import GenerationOptions, Origin, SamplingOptions, TokenRun
from storage import SessionStore

TITLE = "A cat and the sea"
QUESTION = "Write one sentence about a cat and the sea."
SECOND = "Now let it rain."
ALTERNATIVES = 2
OPTIONS = GenerationOptions(max_tokens=60, sampling=SamplingOptions(temperature=0.8, top_p=0.95, min_p=0.05), seed=11)


async def record(folder: Path) -> dict[str, Any]:
    """Chats, branches twice, and returns the stored session."""
    store = SessionStore.open(DataFolder(folder).sessions)
    workbench = AppWorkbench(Services(store, Supervisor("smollm2", "hf"), OPTIONS))
    try:
        session_id = (await workbench.sessions.new()).session_id
        await workbench.answers.send(session_id, QUESTION)
        view = await workbench.sessions.open(session_id)
        first = view.turns[-1]
        await workbench.answers.send(session_id, SECOND)
        tip = (await workbench.sessions.open(session_id)).turns[-1].node_id
        for index, token in best_forks(first.run):
            await workbench.branches.select(session_id, first.node_id)
            await workbench.answers.branch(session_id, first.node_id, index, token)
        await workbench.branches.select(session_id, tip)
        session = await load_whole(store, session_id, branches=True)
        model = await workbench.services.supervisor.model()
        return as_json(session, model.info.kv_fingerprint, model.byte_vocab, tip)
    finally:
        await workbench.close()


def best_forks(run: TokenRun) -> list[tuple[int, int]]:
    """The places where the second choice was nearly as likely as the first: index and that token."""
    places: list[tuple[float, int, int]] = []
    for i, record in enumerate(run):
        if record.origin is Origin.SAMPLED and len(record.top_ids) > 1 and 3 < i < len(run) - 12:
            other = next(k for k, t in enumerate(record.top_ids) if t != record.token_id)
            places.append((record.top_logprobs[other], i, record.top_ids[other]))
    places.sort(reverse=True)
    return [(i, token) for _, i, token in places[:ALTERNATIVES]]


def as_json(session: WholeSession, fingerprint: str, vocabulary: list[bytes], tip: int) -> dict[str, Any]:
    """The tree, its tokens, and the bytes of every shown token."""
    order = list(session.tree.nodes)
    nodes = []
    used: set[int] = set()
    for node in session.tree.nodes.values():
        run = session.runs[node.id]
        used |= set(run.ids.tolist()) | set(run.top_ids.ravel().tolist())
        nodes.append(
            {
                "parent": None if node.parent_id is None else order.index(node.parent_id),
                "at_token": node.at_token,
                "at_byte": node.at_byte,
                "role": node.role,
                "turn_start": node.turn_start,
                "finish_reason": node.finish_reason,
                "stats": dict(node.stats),
                "tokens": run_to(run),
            }
        )
    return {
        "format": 1,
        "title": TITLE,
        "fingerprint": fingerprint,
        "current": order.index(tip),
        "nodes": nodes,
        "vocabulary": {str(t): vocabulary[t].hex() for t in sorted(used) if t >= 0},
    }


def run_to(run: TokenRun) -> dict[str, Any]:
    """The inverse of `app.sample.run_from`, numbers rounded to the precision of the window; those of a draw are exact."""

    def plain(values: npt.NDArray[Any], digits: int = 4) -> list[Any]:
        return [None if np.isnan(v) else round(float(v), digits) for v in values]

    told = {
        "ids": run.ids.tolist(),
        "bytes": [data.hex() for data in run.token_bytes],
        "logprob": plain(run.logprob),
        "rank": run.rank.tolist(),
        "entropy": plain(run.entropy),
        "covered_mass": plain(run.covered_mass),
        "origin": run.origin.tolist(),
        "finish": run.finish.tolist(),
        "draw": plain(run.draw, 6),
    }
    if run.stages is None:
        finite = np.where(np.isneginf(run.top_logprobs), -999.0, run.top_logprobs)
        rounded = [[round(float(v), 4) for v in row] for row in finite]
        return told | {"top_ids": run.top_ids.tolist(), "top_logprobs": rounded}
    exact = {"top_ids": run.top_ids, "top_logprobs": run.top_logprobs, **run.stages.to_columns(run.top_ids, run.top_logprobs)}
    return told | {"stages": {name: _packed(column) for name, column in exact.items()}}


def _packed(column: npt.NDArray[Any]) -> list[Any]:
    """An array as dtype, shape and its bytes, which JSON can hold."""
    return [column.dtype.str, list(column.shape), base64.b85encode(zlib.compress(column.tobytes(), 9)).decode()]


def main() -> None:
    """Writes resources/sample/session.json."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = asyncio.run(record(Path(folder)))
    target = Path(str(importlib.resources.files("resources"))) / "sample" / "session.json"
    target.write_text(json.dumps(recorded, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main()
