"""``python -m runtime.hub.child plan|fetch ORG/NAME@REVISION``: the only process of Elsewise's that speaks to a hub.

On standard output: one JSON object a line (`Said`). Ends when its standard input closes, so it never outlives the process
that asked for it; what has arrived by then is kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import msgspec

from runtime.errors import DownloadError
from runtime.hub.downloading import Download
from runtime.hub.plan import DownloadPlan, HubId
from runtime.hub.said import Said
from runtime.loading.children import end_with_parent


def main() -> int:
    """The child's whole life; 0 done, 1 refused."""
    parser = argparse.ArgumentParser(description="Look up or fetch a model or an adapter from a Hugging Face hub.")
    parser.add_argument("what", choices=("plan", "fetch"))
    parser.add_argument("repository")
    parser.add_argument("--kind", choices=("model", "adapter"))
    arguments = parser.parse_args()
    end_with_parent()
    os.umask(0o077)
    try:
        hub_id = HubId.parse(arguments.repository)
        download = Download(hub_id, lambda progress: _say(Said(progress=progress)), wanted=arguments.kind)
        if arguments.what == "plan":
            with tempfile.TemporaryDirectory(prefix="elsewise-") as scratch:
                _say(Said(plan=download.plan(Path(scratch))))
        else:
            _say(Said(name=download.fetch(_say_plan)))
    except DownloadError as fault:
        _say(Said(error=str(fault), reason=fault.reason, kept=fault.kept))
        return 1
    return 0


def _say_plan(plan: DownloadPlan) -> None:
    _say(Said(plan=plan))


def _say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
