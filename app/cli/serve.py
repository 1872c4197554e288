"""`elsewise serve`: serves a model to other programs through OpenAI's API."""

from __future__ import annotations

import asyncio
import os
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import click

from app.cli.common import read_text
from app.cli.options import TEMPLATES, WEIGHTS, WEIGHTS_HELP, adapter_options, format_of, in_options, load_options, weights_of
from app.cli.settings import CliSettings

KEY_VARIABLE = "ELSEWISE_SERVE_KEY"
OLD_KEY_VARIABLE = "ELSEWISE_API_KEY"  # the variable of clients; read if `KEY_VARIABLE` is not set
EXAMPLES = """\b
Examples:
  elsewise serve smollm2
  elsewise serve smollm2 --port 8123 --name small
  elsewise serve smollm2 --host 0.0.0.0 --key-file keys.txt
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", required=False)
@click.option("--backend", help="auto, hf, mlx, mock, or a registered one.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on; other than loopback needs a key."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 is any free one.")
@click.option("--name", help="The model's name for clients; default: its own.")
@click.option(
    "--key-file",
    metavar="FILE",
    help=f"File with the keys that clients must send, one a line, 16 characters or more; or set {KEY_VARIABLE}.",
)
@click.option("--salt-per-key", is_flag=True, help="Clients with different keys do not share the cache of prompts.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A host name under which clients reach this server.")
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Allow requests from web pages of this origin: http://localhost:3000",
)
@click.option("--tls", nargs=2, metavar="CERT KEY", help="Serve https: files with the certificate chain and its key.")
@click.option(
    "--format",
    "template",
    metavar="NAME|FILE",
    help=f"Chat template to use instead of the model's own: {', '.join(TEMPLATES[1:])}, or a file.",
)
@click.option("--weights", type=click.Choice(WEIGHTS), help=WEIGHTS_HELP)
@click.option("--adapter", "adapters", multiple=True, metavar="PATH|NAME[:SCALE]", help="Put a LoRA adapter on the model.")
@click.option(
    "--load", "loads", multiple=True, metavar="NAME=VALUE", help="Any load option, such as kv_cache_bytes=2000000000."
)
@click.pass_obj
def serve(
    settings: CliSettings,
    model: str | None,
    backend: str | None,
    host: str,
    port: int,
    name: str | None,
    key_file: str | None,
    salt_per_key: bool,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    tls: tuple[str, str] | None,
    template: str | None,
    weights: str | None,
    adapters: tuple[str, ...],
    loads: tuple[str, ...],
) -> None:
    """Serves MODEL to other programs through OpenAI's API: /v1/completions, /v1/chat/completions and more.

    Ctrl-C stops it. Prompts and answers are neither logged nor stored; --verbose before the command logs a line a request.
    """
    from app.serve import Access, ServedModel, bind, checked_keys, is_loopback
    from app.serve import serve as run
    from runtime import spawn

    options: dict[str, Any] = (
        load_options("--load", loads) | format_of(template) | adapter_options(adapters) | weights_of(weights)
    )
    variable = next((each for each in (KEY_VARIABLE, OLD_KEY_VARIABLE) if each in os.environ), KEY_VARIABLE)
    texts = ([os.environ[variable]] if variable in os.environ else []) + ([read_text(key_file)] if key_file else [])
    if variable == OLD_KEY_VARIABLE:
        click.echo(f"note: {OLD_KEY_VARIABLE} is taken for a key of this server; name it {KEY_VARIABLE}", err=True)
    try:
        keys = checked_keys(texts)
    except ValueError as fault:
        raise click.UsageError(f"{'--key-file' if key_file else variable}: {fault}") from None
    if texts and not keys:
        raise click.UsageError(f"{'--key-file' if key_file else variable}: there is no key in it")
    if not is_loopback(host) and not keys:
        raise click.UsageError(
            f"--host {host} lets other machines ask: give them a key with --key-file FILE or {KEY_VARIABLE} "
            "(python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one)"
        )
    if salt_per_key and not keys:
        raise click.UsageError(f"--salt-per-key needs keys: --key-file FILE or {KEY_VARIABLE}")
    for path in tls or ():
        if not Path(path).is_file():
            raise click.UsageError(f"--tls {path}: there is no such file")
    if tls:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*tls)
        except OSError as fault:  # ssl.SSLError is one
            raise click.UsageError(f"--tls {tls[0]} {tls[1]}: they are no certificate and its key ({fault})") from fault
    if name is not None and not (name.strip() and name.isprintable()):
        raise click.UsageError("--name: give a name of printable characters")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    source, chosen = settings.chosen(model, backend)
    try:
        bound = bind(host, port)
    except OSError as fault:
        raise click.ClickException(f"--host {host} --port {port}: {fault.strerror}") from fault
    served = ServedModel(partial(spawn, source, chosen, **options), name)
    access = Access(
        keys=keys,
        hosts=frozenset(each.lower() for each in hosts),
        origins=frozenset(origins),
        loopback=is_loopback(host),
        salt_per_key=salt_per_key,
    )
    address = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"

    def ready() -> None:
        loaded = served.loaded
        for warning in loaded.info.warnings if options and loaded is not None else ():
            click.echo(f"note: {in_options(warning)}", err=True)
        click.echo(f"serving {served.name} at {address}/v1", err=True)

    click.echo(f"loading {source}", err=True)
    asyncio.run(run(served, access, bound, on_ready=ready, ssl=tls))
