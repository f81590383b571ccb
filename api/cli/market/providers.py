"""``broker providers``: adapters, and recorded payloads read without a network."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from api.bootstrap import Product
from api.cli.configuration import load_settings
from api.cli.errors import ExitCode
from api.cli.market_source import ask_stored, named_server
from api.cli.output import Json, print_items, print_json, read_bytes, stdout
from api.cli.plain_table import PlainTable, markdown_lines
from api.cli.tables import print_section
from api.cli.times import TIME_HELP, read_time
from api.client import connect
from api.given_settings import load_environment
from api.schemas.base.times import parse_time
from api.schemas.market.networks import NETWORK_PLAN
from api.schemas.market.provider import (
    BATCH,
    BILLING,
    FEED,
    MISSING,
    PROBE,
    Feed,
)
from api.sections import Section, section_of
from broker.catalogue import load_operators
from broker.domain.basics.errors import FieldProblem, InputError, PayloadUnreadable
from broker.domain.basics.money import price_words
from broker.domain.holding.order_rules import OrderRules, Orders
from broker.domain.holding.seller_network import NetworkPart
from broker.domain.market.probing import ProbeReport
from broker.domain.market.stock_pools import sited
from broker.provider_facts import Billing, load_provider_facts
from providers.probe import probe
from providers.registry import (
    SPECS,
    configured,
    find_spec,
    is_orderable,
    missing_settings,
    seller_modes,
)
from providers.spec import Capability, ProviderSettings, ProviderSpec

app = typer.Typer(help="Adapters and recorded payloads.", no_args_is_help=True, add_completion=False)


PROPERTIES: tuple[tuple[str, Capability], ...] = (
    ("stock", Capability.AVAILABILITY),
    ("spot", Capability.SPOT),
    ("windows", Capability.WINDOWS),
    ("reserve", Capability.RESERVE),
    ("release", Capability.RELEASE),
    ("many nodes", Capability.MULTI_NODE),
)


def capability_table() -> str:
    """Providers × properties as Markdown, from the specs."""
    headers = ("provider", "key", *(name for name, _ in PROPERTIES), "open feed", "repeats are safe by")
    rows = tuple(
        (
            spec.title,
            f"`{name}`",
            *("✓" if capability in spec.capabilities else "" for _, capability in PROPERTIES),
            "✓" if spec.keyless else "",
            spec.idempotency.value if spec.idempotency is not None else "",
        )
        for name, spec in sorted(SPECS.items())
    )
    return "\n".join(markdown_lines(PlainTable(headers, rows, len(headers)))) + "\n"


@app.command("list")
def list_providers(
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print what each adapter can do as a Markdown table.")
    ] = False,
    feeds: Annotated[
        bool, typer.Option("--feeds", help="How each configured feed is doing and when it is asked next.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List every provider: what its adapter can do, and whether the environment of this machine configures
    it. With --feeds the server that BROKER_URL names is asked, else the database of this machine.

    Example: broker providers list --feeds
    """
    if feeds:
        show_feeds(_feeds(), as_json=as_json)
        return
    if as_markdown:
        stdout().file.write(capability_table())
        return
    settings = load_settings()
    found = configured(load_environment(), settings.sandbox_url)
    rules = OrderRules(Orders(settings.orders), seller_modes(found))
    rows = [
        {
            "provider": name,
            "title": spec.title,
            "configured": name in found,
            "sandbox": name in found and found[name].sandbox,
            "mode": rules.modes.get(name),
            "orderable": is_orderable(name, found),
            "orders_barred": rules.barred(name) if name in rules.modes else "",
            "missing_settings": [
                MISSING.write(one) for one in (spec.missing(found[name]) if name in found else ())
            ],
            "keyless": spec.keyless,
            "billing": None if billing is None else BILLING.write(billing),
            "capabilities": sorted(spec.capabilities),
            "variables": [spec.variable(field) for field in (*spec.credentials, *spec.optional_credentials)],
        }
        for name, spec in sorted(SPECS.items())
        for billing in (load_provider_facts(name).billing,)
    ]
    if as_json:
        print_items(rows)
        return
    columns: dict[str, Callable[[tuple[str, ProviderSpec]], str]] = {
        "=provider": lambda one: one[0],
        "=configured": lambda one: _configured(found.get(one[0])),
        "=orders": lambda one: "yes" if is_orderable(one[0], found) and rules.allows(one[0]) else "no",
        "billed by": lambda one: _billed_by(load_provider_facts(one[0]).billing),
        "can": lambda one: ", ".join(sorted(one[1].capabilities)),
        "credentials": lambda one: ", ".join(map(one[1].variable, one[1].credentials)) or "none",
    }
    print_section(section_of(sorted(SPECS.items()), columns))
    barred = [name for name in rules.modes if not rules.allows(name)]
    if barred:
        stdout().print(rules.barred(*barred), soft_wrap=True)
    for name, missing in missing_settings(found).items():
        which = "not all" if is_orderable(name, found) else "no"
        told = f"{name} takes {which} orders until a setting is made: {'; '.join(map(str, missing))}"
        stdout().print(told, soft_wrap=True)


def _configured(settings: ProviderSettings | None) -> str:
    if settings is None:
        return "no"
    return "sandbox" if settings.sandbox else "real"


def _billed_by(billing: Billing | None) -> str:
    if billing is None:
        return ""
    return increment_words(billing.increment_s) + (" (assumed)" if billing.assumed else "")


def increment_words(seconds: int) -> str:
    """A billing increment in words; empty for none."""
    words = {0: "", 1: "second", 60: "minute", 3600: "hour"}
    return words.get(seconds, f"{seconds // 60} minutes" if seconds % 60 == 0 else f"{seconds} s")


Document = dict[str, Any]
_CLOUD = re.compile(r"[a-z0-9_]+")


def _feeds() -> list[Document]:
    """The feeds of the server that BROKER_URL names, else of the database of this machine."""
    server = named_server()
    if server is not None:
        with server:
            return list(server.list_providers())

    async def ask(product: Product) -> list[Document]:
        found = await product.offers.find_feeds()
        return [FEED.write(Feed(feed, product.offers.polling_of(feed))) for feed in found]

    return ask_stored(ask)


def show_feeds(asked: Sequence[Document], *, as_json: bool) -> None:
    """Prints where each feed stands, of its documents."""
    if as_json:
        print_items(asked)
        return
    columns: dict[str, Callable[[Document], str]] = {
        "=provider": lambda one: one["provider"],
        "=offers": lambda one: f"{one['offers']:,}",
        "=good at": lambda one: _shown(one["last_success_at"]) + (" stale" if one["stale_since"] else ""),
        "=every": lambda one: f"{one['poll_every_s']:g} s",
        "=breaker": lambda one: (
            f"{one['breaker']}" + (f", {one['failures_in_a_row']} failed" if one["failures_in_a_row"] else "")
        ),
        "=next (UTC)": lambda one: _shown(one["next_poll_at"]),
        "error": lambda one: one["last_error"] or "" if one["failures_in_a_row"] else "",
    }
    print_section(section_of(asked, columns))


def _shown(at: str | None) -> str:
    return "never" if at is None else f"{parse_time(at):%d %b %H:%M}"


@app.command("probe")
def probe_provider(
    name: Annotated[str, typer.Argument(help="Provider key.")],
    as_json: Json = False,
) -> None:
    """Compare a provider's answers with what its adapter expects. It buys nothing.

    It reports fields that are missing or have another type, unknown values, and endpoints that will be
    retired. Providers with dry runs (capability dry_run) also say whether they would accept an order.

    Exit code 1 when something differs.

    Example: broker providers probe lambda
    """
    spec = find_spec(name)
    found = configured(load_environment(), load_settings().sandbox_url, keyless=True)
    if name not in found:
        variables = ", ".join(spec.variable(field) for field in spec.credentials)
        problem = FieldProblem(variables, "not set", f"credentials of {spec.title}")
        raise InputError("environment or broker.toml", (problem,))
    report = asyncio.run(probe(found[name], datetime.now(UTC)))
    if as_json:
        print_json({"provider": name, **PROBE.write(report)})
    else:
        _show_probe(report)
    if report.findings:
        raise typer.Exit(ExitCode.UNEXPECTED)


def _show_probe(report: ProbeReport) -> None:
    """Prints what was compared, then the differences."""
    compared = [(one.call, f"{one.rows:,}") for one in report.compared]
    if compared:
        print_section(Section(("compared", ">rows"), compared))
    if not report.findings:
        stdout().print(f"{report.provider}: nothing differs")
        return
    rows = [(one.kind.value, one.call, one.field, one.says) for one in report.findings]
    print_section(Section(("=difference", "call", "field", "what differs"), rows))


@app.command("setup")
def set_up(
    name: Annotated[str, typer.Argument(help="Provider key.")],
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="IPv4 network that may reach machines, such as 203.0.113.0/24; 0.0.0.0/0: everybody.",
        ),
    ] = None,
    regions: Annotated[
        list[str] | None,
        typer.Option(
            "--region",
            help="Region; default: those that are configured, for a dry run else that of the cheapest offer.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be made; make nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Make what a seller's machines need before they can be reached: network, subnet and firewall.

    It is made once, by the broker that BROKER_URL names, with an administrator's key; later orders use it.
    Repeated, it makes nothing twice; another --from changes who is let in. Ports 22 and 8000 are opened.

    Example: broker providers setup aws --from 203.0.113.0/24 --dry-run
    """
    with connect(load_settings()) as client:
        plan = client.set_up_provider(name, sources or (), regions, dry_run=dry_run)
    if as_json:
        print_json(NETWORK_PLAN.write(plan))
        return
    columns: dict[str, Callable[[NetworkPart], str]] = {
        "=region": lambda part: part.region or "all",
        "part": lambda part: part.says,
        "=state": lambda part: _part_state(part, dry_run=dry_run),
        "id": lambda part: part.reference or "",
    }
    print_section(section_of(plan.parts, columns))
    usd = price_words(plan.address_usd_per_node_hour)
    told = f"These cost nothing. A machine's public address costs {usd} an hour; offers' prices contain it."
    stdout().print(told, soft_wrap=True)
    if dry_run and plan.missing:
        named = [f"--from {source}" for source in sources or ()]
        named += [f"--region {one}" for one in dict.fromkeys(part.region for part in plan.parts) if one]
        stdout().print(f"To make it: broker providers setup {name} {' '.join(named)}", soft_wrap=True)


def _part_state(part: NetworkPart, *, dry_run: bool) -> str:
    if part.made:
        return "made"
    return "there" if part.reference is not None else "would be made" if dry_run else "missing"


@app.command()
def parse(
    name: Annotated[str, typer.Argument(help="Provider key.")],
    files: Annotated[list[Path], typer.Argument(help="Recorded answers of its API.")],
    cloud: Annotated[
        str | None, typer.Option(help="Whose file of a catalogue it is; without it, its name says so.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help=f"When they were recorded; default: now. {TIME_HELP}.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Always so.", show_default=False)] = True,
) -> None:
    """Read a provider's recorded answers: offers, and the rows that could not become one, as JSON.

    Example: broker providers parse lambda instance_types.json

    Example: broker providers parse skypilot vms.csv --cloud aws
    """
    spec = find_spec(name)
    if cloud is not None:
        _require_catalogue(spec, cloud, files)
    payloads = [(_payload_name(spec, cloud, file.name), read_bytes(file)) for file in files]
    try:
        batch = spec.parse(payloads, read_time("--at", at) or datetime.now(UTC))
    except PayloadUnreadable as error:
        problem = FieldProblem("", str(error), f"answers as {spec.title} documents them")
        raise InputError(", ".join(str(file) for file in files), (problem,)) from error
    print_json(BATCH.write(sited(batch, load_operators())))


def _require_catalogue(spec: ProviderSpec, cloud: str, files: Sequence[Path]) -> None:
    catalogues = sorted(key for key, one in SPECS.items() if one.name_of_cloud is not None)
    if spec.name_of_cloud is None:
        problem = FieldProblem(
            "--cloud", repr(cloud), f"no cloud of {spec.name}: {', '.join(catalogues)} have"
        )
        raise InputError("providers parse", (problem,))
    if _CLOUD.fullmatch(cloud) is None:
        problem = FieldProblem("--cloud", repr(cloud), "the catalogue's word for a cloud, such as aws")
        raise InputError("providers parse", (problem,))
    if len(files) > 1:
        problem = FieldProblem("--cloud", f"{len(files)} files of {cloud}", "the one file of that cloud")
        raise InputError("providers parse", (problem,))


def _payload_name(spec: ProviderSpec, cloud: str | None, name: str) -> str:
    return name if cloud is None or spec.name_of_cloud is None else spec.name_of_cloud(cloud, name)
