"""`elsewise models`: lists, imports, converts, checks and removes models of the shelf; connects to servers."""

from __future__ import annotations

import json
from pathlib import Path

import click

from app.cli.common import console, print_table, read_secret, step_bar
from app.cli.models.hub import EMBEDDED, catalogue_command, fetch_command, login_command, logout_command, search_command
from app.cli.options import in_options, load_options
from app.cli.printing import facts, facts_table, fit_facts, fit_rows, measured_facts, measured_rows, ready_line, shelf_table
from app.fitting import fits
from runtime import (
    Connection,
    ModelLoadError,
    ModelShelf,
    add_connection,
    connections,
    convert_model,
    discard_download,
    find_connection,
    forget_connection,
    import_adapter,
    import_model,
    is_adapter_folder,
    list_models,
    list_shelf_adapters,
    models_dir,
    plan_import,
    unfinished_downloads,
)


@click.group()
def models() -> None:
    """Models on this machine."""


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line, one for each model.")
def list_command(as_json: bool) -> None:
    """Lists installed models with their sizes, and adapters with the model that each was made for."""
    entries, adapters, servers = ModelShelf().models(), list_shelf_adapters(), connections()
    if not entries:
        click.echo(f"no models in {models_dir()}; fetch the embedded one: elsewise models get {EMBEDDED}", err=True)
    if as_json:
        for entry in entries:
            click.echo(json.dumps(facts(entry)))
    elif entries or adapters:
        print_table(shelf_table(entries, adapters))
    for each in servers:
        line = {"name": each.name, "base_url": each.base_url, "model": each.model}
        click.echo(json.dumps(line) if as_json else f"{each.name}: {each.model or 'the model'} at {each.base_url}")
    for note in unfinished_downloads():
        again = f"elsewise models fetch {note.source}"  # names the commit that was begun: its branch may have moved
        click.echo(f"{note.name}: {note.kept:,} of {note.total:,} bytes are downloaded; resume with: {again}", err=True)


@models.command("info")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--context", type=click.IntRange(1), help="Context length to calculate with. Example: --context 4096")
@click.option("--load", "loads", multiple=True, help="A load option to calculate with. Example: --load weights=int8")
def info_command(name: str, as_json: bool, context: int | None, loads: tuple[str, ...]) -> None:
    """Shows size, format, context, engines, fingerprint, last use and folder of a model, and whether it fits."""
    shelf = ModelShelf()
    entry = shelf.find(name)
    options = load_options("--load", loads)
    config = shelf.config(name) if entry.complete else {}
    found = fits(config, entry.weights, entry.dtype, entry.backends, context, options=options) if entry.complete else []
    if as_json:
        click.echo(json.dumps(facts(entry) | {"fit": fit_facts(found)} | measured_facts(entry)))
    else:
        print_table(facts_table(entry, fit_rows(found) | measured_rows(entry)))


@models.command("remove")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_command(name: str, yes: bool) -> None:
    """Deletes an installed model or adapter that is not loaded, and says how much space that freed.

    Of a stopped download, deletes the part that was downloaded.
    """
    if find_connection(name) is not None:
        forget_connection(name)
        click.echo(f"{name}: removed, with its key; the server itself is not affected")
        return
    shelf = ModelShelf()
    try:
        what, remove = str(shelf.folder(name)), shelf.remove
    except ModelLoadError:
        if not any(name in (note.name, note.repository) for note in unfinished_downloads()):
            raise
        what, remove = f"what is here of {name}", lambda name: discard_download(name) or 0
    if not yes:
        click.confirm(f"delete {what}?", abort=True, err=True)
    freed = remove(name)
    click.echo(f"{name}: removed, {freed:,} bytes freed")


@models.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--name", help="Name to install it under. Example: --name org/name")
@click.option(
    "--keep-quantised/--float32",
    "keep_quantised",
    default=None,
    help="GGUF only: keep the weights quantised (mlx, hf on a processor; default on Apple silicon), or convert to float32.",
)
def import_command(path: Path, name: str | None, keep_quantised: bool | None) -> None:
    """Imports a GGUF file, a model folder or an adapter folder.

    Of an adapter (peft's or mlx-lm's layout), copies configuration and safetensors; use it with: ask --adapter NAME.
    """
    with step_bar() as show:
        if is_adapter_folder(path):
            if keep_quantised is not None:
                raise click.UsageError("--keep-quantised and --float32 are for GGUF files; an adapter is taken as it is")
            adapter = import_adapter(path, name, show)
            done = f"{adapter.name}: ready in {adapter.path}; use it with: elsewise ask --adapter {adapter.name}"
        else:
            folder = import_model(path, name, show, keep_quantised=keep_quantised)
            note = plan_import(path).note if folder.quantisation and path.is_file() else ""
            done = ready_line(folder.path.name.replace("--", "/"), folder.path, folder.quantisation)
            done += f"\n{note}" if note else ""
    click.echo(done)


@models.command("convert")
@click.argument("source")
@click.option("--bits", type=click.Choice(("4", "8")), default="4", show_default=True, help="Bits per weight.")
@click.option("--name", help="Name to install it under. Example: --name org/name-4bit")
def convert_command(source: str, bits: str, name: str | None) -> None:
    """Quantises a model for mlx. SOURCE is a folder or an installed model; it is not changed.

    Example: elsewise models convert smollm2 --bits 8
    """
    with step_bar() as show:
        folder = convert_model(source, 8 if bits == "8" else 4, name, show)
    made = folder.path.name.replace("--", "/")
    click.echo(ready_line(made, folder.path, folder.quantisation))


@models.command("add")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--name", help="Name to install it under. Example: --name org/name")
def add_command(path: Path, name: str | None) -> None:
    """Adds a model folder without copying it; 'remove' does not delete the folder."""
    entry = ModelShelf().add(path, name)
    click.echo(ready_line(entry.name, Path(entry.source), entry.quantisation))


CONNECT_EXAMPLES = """\b
Examples:
  elsewise models connect big http://127.0.0.1:8000
  elsewise models connect cluster https://vllm.example.org/v1 --model meta-llama/Llama-3.1-70B --key
  elsewise ask "Name three colours." --model big
"""


@models.command("connect", epilog=CONNECT_EXAMPLES)
@click.argument("name")
@click.argument("url")
@click.option("--model", help="The model's id on the server; not needed if it has only one.")
@click.option("--tokenizer", metavar="PATH|NAME", help="A tokenizer of this machine, or 'server' for the server's.")
@click.option("--key", "with_key", is_flag=True, help="Ask for the server's key without showing it; it can also be piped in.")
@click.option("--plain-http", is_flag=True, help="Allow unencrypted HTTP to another machine, from now on.")
def connect_command(name: str, url: str, model: str | None, tokenizer: str | None, with_key: bool, plain_http: bool) -> None:
    """Saves a server's model under NAME, to be used with --model. The key is stored only in the system keychain.

    Asks the server what it supports and prints what is missing.
    """
    key = read_secret("key") if with_key else ""
    with console.status(f"connecting to {url}"):
        info, kept_in = add_connection(Connection(name, url, model, plain_http, tokenizer), key.strip())
    click.echo(f"{name}: {info.name}, {info.backend} {info.options['server_version']}".rstrip())
    click.echo(f"it has: {', '.join(info.capabilities)}")
    for warning in info.warnings:
        click.echo(f"note: {warning}", err=True)
    if kept_in:
        click.echo(f"the key is stored in {kept_in}")


for command in (catalogue_command, search_command, login_command, logout_command, fetch_command):
    models.add_command(command)
models.add_command(fetch_command, "get")  # an alias: its original name


@models.command("verify")
@click.argument("name", required=False)
def verify_command(name: str | None) -> None:
    """Reads every file and compares it with its stored SHA-256."""
    here = [entry.name for entry in list_models()] + [adapter.name for adapter in list_shelf_adapters()]
    names = [name] if name else here
    failed = False
    for each in names:
        try:
            with step_bar() as show:
                ModelShelf().verify(each, show)
            click.echo(f"{each}: sound")
        except ModelLoadError as fault:
            failed = True
            said = in_options(fault)
            click.echo(said if said.startswith(f"{each}: ") else f"{each}: {said}", err=True)
    if failed:
        raise click.exceptions.Exit(1)
