"""`elsewise ask`: one turn in the terminal, streamed; alone, as part of a saved session, or many from a file."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import click

from app.cli.asking import Asked, Flags, asking
from app.cli.batch import answer_batch
from app.cli.common import load_model, reading, told_precision
from app.cli.printing import Printer
from app.cli.saved import ask_saved
from app.cli.settings import Settings
from app.workbench.making import plain_options
from app.workbench.naming import told_options
from runtime import LanguageModel, PromptProgress

EXAMPLES = """\b
Examples:
  elsewise ask "Name three colours." --alternatives 5
  elsewise ask "Once upon a time" --raw --temperature 1 --seed 7
  elsewise ask "One, two, three," --raw --temperature 0 --stop seven
  elsewise ask "Is water wet?" --regex "(yes|no)"
  elsewise ask "Tell a story." --option typical_p=0.9 --option dry_multiplier=0.8
  elsewise ask --batch questions.jsonl --out answers.jsonl
"""


@click.command(epilog=EXAMPLES)
@click.argument("text", required=False)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With --batch: write the results to this file.",
)
@click.option("--resume", is_flag=True, help="With --batch and --out: pass over the lines that the file answers already.")
@asking
@click.pass_obj
def ask(settings: Settings, text: str | None, out: Path | None, resume: bool, **flags: Unpack[Flags]) -> None:
    """Answers TEXT, or with --batch every line of a file."""
    asked = Asked.of(settings, flags)
    if flags["batch"] is not None:
        if text is not None:
            raise click.UsageError("--batch takes its texts from the file: leave out TEXT")
        if resume and out is None:
            raise click.UsageError("--resume goes on in a file: name it with --out")
        answer_batch(flags["batch"], asked, out, resume=resume)
        return
    if out is not None or resume:
        raise click.UsageError("--out and --resume go with --batch")
    if text is None:
        raise click.UsageError('TEXT is missing: elsewise ask "Name three colours." (or --batch FILE)')
    if not text.strip():
        raise click.UsageError("TEXT is empty; write a message")
    printer = Printer(asked.alternatives, asked.as_json, formed=asked.formed)
    if flags["session"] is not None:
        saved = asyncio.run(ask_saved(settings.data, flags["session"], text, asked, printer.run))
        seed = saved.seed
        printer.summary = replace(
            printer.summary, options=saved.options, precision=saved.precision, guesses=saved.guesses, rate=saved.rate
        )
    else:
        seed = asked.seed
        with load_model(asked.model, asked.backend, **asked.load) as model:
            asyncio.run(_stream(model, text, asked, printer))
    printer.end(seed)
    if printer.broken:
        raise click.exceptions.Exit(1)


async def _stream(model: LanguageModel, text: str, asked: Asked, printer: Printer) -> None:
    ids = await prompt_ids(model, text, asked)
    resolved = asked.resolved(model)
    told = told_options(plain_options(resolved.options), resolved.sources)
    printer.summary = replace(printer.summary, options=told, precision=told_precision(model))
    printer.vocabulary = model.decode_token
    request = 0
    with ExitStack() as bar:
        show = bar.enter_context(reading())

        def on_progress(progress: PromptProgress) -> None:
            nonlocal request
            show(progress)
            request = progress.request
            if progress.done == progress.total:
                bar.close()  # what follows is the answer
                printer.summary = replace(printer.summary, reused=progress.reused, computed=progress.computed)

        async with aclosing(model.generate_runs(ids, resolved.options, on_progress=on_progress)) as runs:
            async for run in runs:
                printer.run(run, model.decode_token)
    metrics = model.metrics()
    printer.summary = replace(printer.summary, rate=metrics.tokens_per_second)
    if resolved.options.speculative is not None and (took := metrics.request(request)) is not None:
        printer.summary = replace(printer.summary, guesses=(took.drafted, took.accepted))


async def prompt_ids(model: LanguageModel, text: str, asked: Asked) -> list[int]:
    """The text as a message by the chat template, or as it is: with --raw, and where there is no template.

    Raises:
        click.UsageError: A system prompt, but no template that has a place for it.
    """
    if asked.raw:
        return await model.tokenize_async(text)
    if model.chat_template is None:
        if asked.system:
            raise click.UsageError(f"--system: {model.info.name} has no chat template; give it one, such as --format plain")
        click.echo(f"{model.info.name} has no chat template: TEXT is continued (--format plain gives it roles)", err=True)
        return await model.tokenize_async(text)
    system = [{"role": "system", "content": asked.system}] if asked.system else []
    return await model.render_chat_async([*system, {"role": "user", "content": text}])
