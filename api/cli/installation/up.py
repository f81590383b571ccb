"""``broker up``: the main job, from an empty folder to a plan and a server."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from api.app import create_app
from api.bootstrap import Product, build_product
from api.cli.commands_page import COMMANDS_PAGE
from api.cli.configuration import check_variables, load_settings
from api.cli.errors import ExitCode
from api.cli.installation.listening import listen, serve_until_stopped, url_of
from api.cli.installation.sandbox import DEFAULT_SEED
from api.cli.installation.serve import Database, Host, Port, settle_given_key, warn, warn_of_open_orders
from api.cli.market.poll import poll_now, print_totals, rounds_section
from api.cli.output import Json, print_json, read_text, reveal, stderr, stdout
from api.cli.plans.plan_view import misses_something, print_plan, print_plan_in_short
from api.cli.plans.progress import ProgressLine
from api.cli.tables import print_section
from api.given_settings import load_environment
from api.one_time_links import LINK_TIME
from api.plan_requests import options_of
from api.planning.relay import progress_of
from api.schemas.plans.plan import PLAN
from api.schemas.workloads.workloads import read_workloads
from broker.data_folder import data_folder
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import BrokerError
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.domain.planning.workload_document import to_document
from broker.services.accounts.keys import LocalKey
from broker.settings import Settings
from broker.store.accounts.key_files import local_key_file, read_secret, write_secret
from providers.registry import configured
from providers.sandbox.server import start_in_background

app = typer.Typer(add_completion=False)

BUNDLED = data_folder("fixtures", "examples") / "finetune-and-chat.yaml"
LOCAL = Caller("local", "admin", frozenset(Scope))


@app.command()
def up(
    once: Annotated[bool, typer.Option("--once", help="Exit after printing the plan.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Poll open feeds over the internet instead.")] = False,
    host: Host = None,
    port: Port = None,
    database: Database = None,
    workloads: Annotated[
        Path, typer.Option(help="What to plan; default: a bundled example.", show_default=False)
    ] = BUNDLED,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="The whole plan, and a line a provider.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Do everything: database, market, poll, plan of the example workloads, then serve.

    Without a configured provider a sandbox market is started, on real, dated prices. A link signs a browser
    on this machine in, once, within ten minutes.

    Example: broker up --once
    """
    settings = load_settings(host=host, port=port, database_url=database)
    check_variables(os.environ)
    listening = nullcontext(None) if once else listen(settings.host, settings.port)
    with listening as bound, _market(settings, live) as sandbox_url:
        start = _Start(workloads, as_json, verbose)
        missing = asyncio.run(_run(settings, sandbox_url, live, start, bound))
    if missing:
        raise typer.Exit(ExitCode.UNPLACED)


@contextmanager
def _market(settings: Settings, live: bool) -> Iterator[str | None]:
    """The URL of a sandbox of our own where nothing else is configured."""
    if configured(load_environment(), settings.sandbox_url, keyless=live):
        yield None
        return
    sandbox = start_in_background(0, DEFAULT_SEED, _state_folder(settings))
    try:
        yield sandbox.url
    finally:
        sandbox.stop()


def _state_folder(settings: Settings) -> Path | None:
    """Beside the SQLite file, so that what the broker holds is known to the market after a restart."""
    scheme, _, file = settings.database_url.partition(":///")
    if not scheme.startswith("sqlite") or not file or file == ":memory:":
        return None
    folder = Path(file).parent / "sandbox"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True, slots=True)
class _Start:
    """What to plan, and how to tell of it."""

    workloads: Path
    as_json: bool
    verbose: bool


async def _run(
    settings: Settings, sandbox_url: str | None, live: bool, start: _Start, bound: socket.socket | None
) -> bool:
    """Whether some workload cannot be placed; False after serving."""
    product = build_product(settings, load_environment(), sandbox_url=sandbox_url, live=live)
    try:
        request = await _prepare(product, start)
        plan = await _make_plan(product, start, request)
        if start.as_json:
            print_json(PLAN.write(plan))
        elif start.verbose or bound is None:
            print_plan(stdout(), plan, request)
        else:
            print_plan_in_short(stdout(), plan, request)
        if bound is None:
            return misses_something(plan)
        await _serve(product, bound, plan)
        return False
    finally:
        await product.close()


async def _prepare(product: Product, start: _Start) -> PlanRequest:
    """Reads the document, migrates the database, and polls."""
    text = read_text(start.workloads)
    with ProgressLine() as progress:
        progress.say("preparing the database")
        await product.store.migrate()
        progress.say(f"asking {len(product.adapters)} providers")
        rounds = await poll_now(product, None)
    if start.verbose:
        print_section(rounds_section(rounds), stderr())
    else:
        print_totals(stderr(), rounds)
    base, now = start.workloads.parent, product.clock.now()
    return read_workloads(text, source=str(start.workloads), base=base, now=now)


async def _make_plan(product: Product, start: _Start, request: PlanRequest) -> Plan:
    with ProgressLine() as progress:
        progress.say(f"planning {len(request.workloads)} workloads of {start.workloads.name}")
        wish = json.dumps(to_document(request))
        record = await product.planning.request_plan(LOCAL, wish, request, options_of(product.settings))
        following = asyncio.create_task(_follow(product, record.plan_id, progress))
        record = await product.planning.run(record.plan_id)
        await following
    if record.plan is None:
        raise BrokerError(record.problem or "the plan failed")
    return record.plan


async def _follow(product: Product, plan_id: str, show: ProgressLine) -> None:
    """Shows how far the solve is until it ends."""
    async for event in product.events.listen(plan_id):
        progress = progress_of(event)
        if progress is not None:
            show(progress)


async def _serve(product: Product, bound: socket.socket, plan: Plan) -> None:
    await settle_given_key(product)
    warn_of_open_orders(product)
    given = product.settings.admin_key
    local = None if given is not None else await _local_key(product)
    key = local.secret if local is not None else given.get_secret_value() if given is not None else ""
    _tell_address(product, bound, local, key)
    _tell_next_steps(plan)
    await serve_until_stopped(create_app(product, reference=COMMANDS_PAGE), bound)


def _tell_address(product: Product, bound: socket.socket, local: LocalKey | None, key: str) -> None:
    console, url = stderr(), url_of(bound)
    console.print(f"\nserving on {url}")
    file = local_key_file(product.settings.database_url)
    if local is not None and local.is_new:
        reveal(f"admin key (shown once): {local.secret}")
    elif local is not None:
        until = f"{local.expires_at:%Y-%m-%d %H:%M} UTC" if local.expires_at is not None else "it is revoked"
        console.print(f"the admin key in {file} is valid until {until}", soft_wrap=True)
    if ipaddress.ip_address(bound.getsockname()[0]).is_loopback:
        token = product.links.make(key, product.clock.now())
        minutes = int(LINK_TIME.total_seconds() // 60)
        reveal(f"open once, within {minutes} minutes: {url}/signin/link?token={token}")
    else:
        console.print(f"open {url} in a browser and sign in with a key")
    secret = "…" if local is None else f"$(cat {shlex.quote(str(file))})"
    then = f"in another terminal: {_activation()}export BROKER_URL={url} BROKER_KEY={secret}"
    console.print(then, soft_wrap=True)


def _activation() -> str:
    """The command that puts ``broker`` on the path of a shell, where it is not yet."""
    script = Path(sys.prefix, "bin", "activate")
    return "" if shutil.which("broker") or not script.is_file() else f". {shlex.quote(str(script))} && "


def _tell_next_steps(plan: Plan) -> None:
    steps = [(f"broker plans {plan.plan_id}", "the whole plan, with its reasons")]
    if plan.placements:
        steps.append((f"broker reserve {plan.plan_id}", "reserve it"))
    steps.append(("broker offers --orderable", "what can be ordered now"))
    console = stderr()
    console.print("\ntry next", style="dim")
    for command, what in steps:
        console.print(f"  {command:<34}  {what}", soft_wrap=True)


async def _local_key(product: Product) -> LocalKey:
    """This machine's administrator's key, from the file that keeps it or new."""
    file = local_key_file(product.settings.database_url)
    kept = read_secret(file)
    if not kept.is_private:
        warn(f"{file} could be read by others than its owner: the key in it is replaced")
    keep = partial(write_secret, file)
    return await product.keys.ensure_local_key(kept.secret, keep, is_private=kept.is_private)
