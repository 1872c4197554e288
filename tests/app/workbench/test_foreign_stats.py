"""The stored provenance of an imported session may have any content: the session opens all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from storage import export_json
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene

ODD: Final = (None, -1, 1e308, "x", [5], [["a", "b"]], {"a": 5}, {"a": [[5]]})
MADE: Final = ("options", "sources", "model", "backend", "fingerprint", "base", "adapters", "stack", "quantisation")
PLAIN: Final = (
    "generated", "logprob", "first_token_seconds", "tokens_per_second", "decode_seconds", "seed", "branch", "sampling",
    "prompt", "reused", "computed", "drafted", "accepted", "changed", "message", "repeated", "made", "beams", "score",
    "overflow", "foreign", "unloaded", "hopeless", "files", "left_out", "as_text", "tools",
)  # fmt: skip
SAMPLING: Final = ("temperature", "banned_tokens", "dry_breakers", "order", "logit_bias")
GOOD: Final = {"generated": 1, "reused": 1, "logprob": -1.0}
STATS: Final[list[dict[str, Any]]] = [
    {"logprob": 1000, "generated": 1},
    *({**GOOD, name: odd} for name in PLAIN for odd in ODD),
    *({**GOOD, "repeated": {name: odd}} for name in ("parts_at", "ended", "compared", "of") for odd in ODD),
    *({**GOOD, "made": {name: odd}} for name in MADE for odd in ODD),
    *({**GOOD, "made": {"options": {name: odd}}} for name in ("sampling", "seed", "branch", "stop", "grammar") for odd in ODD),
    *({**GOOD, "made": {"options": {"sampling": {name: odd}}}} for name in SAMPLING for odd in ODD),
    *({**GOOD, "drafted": 1, "accepted": odd} for odd in ODD),
]


def test_a_session_with_invalid_provenance_opens(play: Play, tmp_path: Path) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        export_json(s.path, session_id, tmp_path / "good.json", lambda _done, _total: None)
        good = json.loads((tmp_path / "good.json").read_text())
        with (tmp_path / "odd.json").open("w") as file:
            for stats in STATS:
                for node in good["nodes"]:
                    node["stats"] = stats
                file.write(json.dumps(good) + "\n")
        imported = await s.store.import_file(tmp_path / "odd.json")
        for stats, number in zip(STATS, imported.sessions, strict=True):
            answer = (await s.view(number)).turns[-1].node_id
            s.workbench.answers.how_made(number, answer)
            assert await s.workbench.drawings.find(number, answer, 1) is not None, stats

    play(scene)
