"""`elsewise bench`: the benchmark of this machine, in a checkout of the source."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from app.cli.common import INTERRUPTED

# The parts of `benchmarks.catalogue`, repeated here to avoid its imports.
PARTS = (
    *("W1", "W2", "W3", "W4", "W5", "cpu", "rows", "overhead", "W6", "bulk", "W7", "kv", "pressure", "many", "W8"),
    *("swap", "sampler", "grammar", "speculative", "remote", "gpu", "trie", "shelf", "files", "quantised", "view", "window"),
    "start",
)
MODELS = ("tiny", "llama", "qwen3", "smollm2")


PARTS_TOLD = """\b
Parts:
  W1 particles, W2 chat, W3 branches, W4 reopening (in another process),
  W5 decode, cpu (SmolLM2, weights in fewer bits), rows (recurrent models),
  overhead (per token), W6 score, bulk (many texts), W7 byte budget, kv (bytes held, little
  memory), pressure (what does not fit together, many edges), many (branches of one prompt, beams), W8 event-loop latency, swap
  (of adapters), sampler, grammar, speculative (decoding), remote (over HTTP), gpu (CUDA), trie, shelf (saved sessions,
  KV blocks), files (of models), quantised (a GGUF file, on hf), view (the window's
  text and list), window (the whole one), start (to it)
"""


@click.command(epilog=PARTS_TOLD)
@click.option("--quick", is_flag=True, help="Smaller sizes, some parts on one backend; about five minutes.")
@click.option("--only", multiple=True, type=click.Choice(PARTS, case_sensitive=False), help="These parts; default: all.")
@click.option(
    "--model",
    type=click.Choice(MODELS),
    default="tiny",
    show_default=True,
    help="tiny: two small generated models, llama and qwen3, so that the cost around the model shows.",
)
@click.option("--backend", "backends", multiple=True, help="hf, mlx (more than once for several); default: all that run here.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures here as well.")
@click.pass_context
def bench(
    context: click.Context, quick: bool, only: tuple[str, ...], model: str, backends: tuple[str, ...], json_path: Path | None
) -> None:
    """Measures Elsewise beside other libraries: tokens computed against tokens needed, speed, memory, latency.

    Every figure is printed with its limit; Ctrl-C prints the results so far.
    """
    if find_spec("benchmarks") is None:  # an installed app does not have it
        raise click.ClickException("the benchmark comes with the source code: run `make bench` in a checkout of it")
    from benchmarks.run import run_bench  # imports the other libraries

    if not run_bench(quick=quick, model=model, backends=backends, only=only, json_path=json_path):
        context.exit(INTERRUPTED)
