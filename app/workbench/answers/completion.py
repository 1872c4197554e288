"""The end of an answer: its last write, its stored statistics, and the names of failures."""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from app.faults import not_loaded, too_long
from app.workbench.answers.answer import Answer, last_message
from app.workbench.answers.provenance import CHANGED, CUT_SHORT, MADE, REPEATED
from app.workbench.prompt.prompt import OtherTokenizerError
from app.workbench.prompt.recorder import Recorder
from app.workbench.refusals import form_refused
from app.workbench.tree.session import FOREIGN, HOPELESS, OVERFLOW, UNLOADED
from runtime import (
    BackendUnavailableError,
    ContextOverflowError,
    EngineDiedError,
    Finish,
    GrammarError,
    ModelLoadError,
    RuntimeFault,
    TokenRun,
    UnknownBackendError,
)
from storage import SessionStore, StoreError
from ui import Refusal, in_window, translate

log = logging.getLogger(__name__)
CUTS = {"cancelled": Finish.CANCELLED, "engine_died": Finish.ENGINE_DIED, "error": Finish.ERROR}
SAMPLING = ("temperature", "top_k", "top_p", "min_p")


class Ending(Struct, frozen=True):
    """The last write of an answer, which can be retried."""

    node_id: int
    finish: str
    incomplete: bool
    stats: Mapping[str, Any]
    text: str
    recorder: Recorder | None
    cut: Finish = Finish.NONE  # the reason if the model did not end it itself

    @property
    def texts(self) -> list[str]:
        return [self.text]

    async def save(self, store: SessionStore) -> None:
        """Writes the remaining tokens, then closes the node.

        Raises:
            StoreError: The write failed; nothing is lost.
        """
        if self.recorder is not None:
            await self.recorder.close(self.cut)
        await store.finish_node(
            self.node_id, finish_reason=self.finish, incomplete=self.incomplete, stats=self.stats, text=self.text
        )


def write_unsaved(title: str, question: str, answers: Sequence[str]) -> Path | None:
    """Writes answers that the store has no room for into a file that only its owner can read; returns its path.

    Tries the home, the temporary and the working folder, one of which may be on another disk; None if all fail.
    """
    parts = [f"# {title}", f"user: {question}", *(f"assistant: {answer}" for answer in answers)]
    data = ("\n\n".join(parts) + "\n").encode("utf-8", "replace")
    for folder in (Path.home(), Path(tempfile.gettempdir()), Path.cwd()):
        file: Path | None = None
        try:
            handle, name = tempfile.mkstemp(prefix="elsewise-unsaved-", suffix=".md", dir=folder)
            file = Path(name)
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError:
            if file is not None:
                file.unlink(missing_ok=True)
        else:
            return file
    return None


def stats_of(answer: Answer, run: TokenRun) -> dict[str, Any]:
    """The statistics and provenance of an answer, as stored with its node."""
    options = answer.options
    seconds = answer.last_token - (answer.first_token or 0.0)
    logprob = float(np.sum(run.logprob[len(run) - answer.made :])) if answer.made else math.nan
    stats: dict[str, Any] = {
        "generated": answer.made,
        "first_token_seconds": None if answer.first_token is None else answer.first_token - answer.began,
        "tokens_per_second": (answer.made - 1) / seconds if answer.made > 1 and seconds > 0 else None,
        "logprob": logprob if math.isfinite(logprob) else None,  # JSON has no NaN
        "seed": options.seed,
        "sampling": {n: getattr(options.sampling, n) for n in SAMPLING if getattr(options.sampling, n) is not None},
    }
    if answer.made_with:
        stats |= {MADE: answer.made_with, "prompt": answer.prompt}
        stats["decode_seconds"] = seconds if answer.made else None
    if answer.repeats is not None and answer.made:
        ids = run.ids[len(run) - answer.made :]
        stats[REPEATED] = answer.repeats.outcome(ids, ended=answer.finish not in CUT_SHORT)
    if answer.changed:
        stats[CHANGED] = list(answer.changed)
    if answer.reused or answer.computed:  # both are 0 if the prompt was not read
        stats |= {"reused": answer.reused, "computed": answer.computed}
    if answer.guesses is not None:
        stats["drafted"], stats["accepted"] = answer.guesses
    flags = {OVERFLOW: answer.overflow, FOREIGN: answer.foreign, UNLOADED: answer.unloaded, HOPELESS: answer.hopeless}
    stats |= {name: True for name, is_set in flags.items() if is_set}
    if answer.message:
        stats["message"] = answer.message
    return stats


def record_outcome(answer: Answer) -> None:
    """Sets the finish reason, the message and the failure flags of an answer whose task is done."""
    task = answer.task
    assert task is not None
    if task.cancelled():
        answer.finish = "cancelled"
        return
    error = task.exception()
    if error is None:
        return
    answer.finish, answer.message = "error", in_window(str(error))
    answer.unloaded = isinstance(error, ModelLoadError | UnknownBackendError | BackendUnavailableError)
    if isinstance(error, EngineDiedError):
        answer.finish = "engine_died"
        log.warning("the engine died: %s", error)
        answer.message = "" if answer.model is not None else not_loaded(error)
    elif isinstance(error, GrammarError) and answer.back is not None and not answer.made:
        answer.message = answer.refused = form_refused(error)
    elif isinstance(error, OtherTokenizerError):
        answer.message = _another_tokenizer(error)
        answer.foreign = True
    elif isinstance(error, UnknownBackendError | BackendUnavailableError):
        answer.message, answer.hopeless = not_loaded(error), True
    elif isinstance(error, ModelLoadError):
        answer.message = not_loaded(error)
    elif isinstance(error, ContextOverflowError):
        answer.message = too_long(error, last_message(answer))
        answer.overflow = answer.hopeless = True
    elif not isinstance(error, RuntimeFault | StoreError | Refusal):
        log.error("an answer failed", exc_info=error)
        words = translate("Workbench", "something went wrong ({0}); your text is kept. The details are in the log")
        answer.message = words.format(in_window(str(error)))


def _another_tokenizer(fault: OtherTokenizerError) -> str:
    """The message for a path that another tokenizer wrote, and what to do about it."""
    if fault.name:
        words = translate(
            "Workbench",
            "{0}. Only its text can be used, not its tokens, numbers and KV. Choose the model it was written with, "
            "{1}, or open it as text",
        )
        return words.format(fault.what, fault.name)
    words = translate(
        "Workbench",
        "{0}. Only its text can be used, not its tokens, numbers and KV. Choose the model it was written with, "
        "or open it as text",
    )
    return words.format(fault.what)
