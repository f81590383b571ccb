"""What ``broker doctor`` looks at: the database, the clock, the keys, and each configured seller."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from api.bootstrap import Product, build_product, open_orders_warning, spending_caps
from api.cli.errors import ExitCode, exit_code_of
from api.schemas.market.diagnosis import Check, Credentials, Diagnosis, Finding, SellerDiagnosis
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import BrokerError, CredentialsRejected, NotFound, ProviderError
from broker.domain.basics.machines import SshKey
from broker.domain.basics.money import usd_words
from broker.domain.holding.order_rules import OrderRules, Orders
from broker.domain.holding.seller_network import NetworkRules, SellerNetwork, network_of_region
from broker.domain.market.market import FeedHealth
from broker.domain.market.offer import Offer
from broker.domain.market.offer_pages import OfferFilter
from broker.domain.market.seller_mode import real_sellers
from broker.domain.spend.spending_caps import SpendingCap
from broker.settings import Settings
from providers.network_setup import NetworkSetup
from providers.probe import Held, ask_what_is_held, probe_calls
from providers.registry import (
    PRICE_LISTS,
    SPECS,
    build_adapters,
    configured,
    network_builders,
    seller_modes,
)
from providers.spec import Feed, ProviderAdapter, ProviderSettings, ProviderSpec

MOST_KEYS = 1000
SKEW_TOLD, SKEW_REFUSED = timedelta(seconds=30), timedelta(minutes=5)
"""From the second on, sellers refuse signed calls."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the database says: feeds by provider, the cheapest offer of each, and public SSH keys.

    ``code``: the exit code of a database that cannot be read. ``keys`` None: not known.
    """

    checks: tuple[Check, ...] = ()
    code: ExitCode = ExitCode.DONE
    feeds: Mapping[str, FeedHealth] = field(default_factory=dict)
    offers: Mapping[str, Offer] = field(default_factory=dict)
    keys: tuple[SshKey, ...] | None = None
    networks: tuple[SellerNetwork, ...] = ()


async def diagnose(
    settings: Settings, environ: Mapping[str, str], team: str | None, *, asks: bool
) -> Diagnosis:
    """Looks at the installation. ``team``: whose SSH keys count (None: of any team).

    ``asks``: each real seller is asked what is held. Nothing is bought or changed. Raises InputError for
    settings that cannot be used.
    """
    reached = configured(environ, settings.sandbox_url)
    stored = await _read(settings, environ, team)
    real = {name: one for name, one in reached.items() if not one.sandbox}
    answers: dict[str, Held] = {}
    if asks:
        told = await asyncio.gather(*(ask_what_is_held(one) for one in real.values()))
        answers = dict(zip(real, told, strict=True))
    rules = OrderRules(Orders(settings.orders), seller_modes(reached))
    sellers = await _sellers(environ, reached, rules, stored, answers)
    checks = (*stored.checks, _clock(answers), _orders(settings, rules), _ssh_keys(stored, team))
    failed = [ExitCode.UNEXPECTED for check in checks if check.finding is Finding.FAILED]
    codes = [stored.code, *failed, *sorted(map(_code_of, sellers))]
    return Diagnosis(checks, sellers, int(next((code for code in codes if code), ExitCode.DONE)))


def _code_of(seller: SellerDiagnosis) -> ExitCode:
    if seller.credentials in (Credentials.REJECTED, Credentials.INCOMPLETE):
        return ExitCode.CREDENTIALS
    return ExitCode.PROVIDER if seller.credentials is Credentials.UNANSWERED else ExitCode.DONE


async def _read(settings: Settings, environ: Mapping[str, str], team: str | None) -> _Stored:
    """What the database says, as far as it can be read."""
    kind = "a SQLite file" if settings.database_url.startswith("sqlite") else "PostgreSQL"
    try:
        product = build_product(settings, environ, exclusive=False)
    except NotFound:
        says = f"{kind} that is not there yet; the first `broker serve` or `broker poll` makes it"
        return _Stored((Check("database", Finding.WARNING, says),))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(product.close)
        try:
            if not await product.store.revision_is_current():
                says = f"{kind} of an older form; the next start brings it up to date"
                return _Stored((Check("database", Finding.WARNING, says),))
            fine = Check("database", Finding.FINE, f"{kind}, of the form of this version")
            return await _facts(product, team, (fine, *await _installed(product)))
        except BrokerError as error:
            return _Stored((Check("database", Finding.FAILED, str(error)),), exit_code_of(error))


async def _facts(product: Product, team: str | None, checks: tuple[Check, ...]) -> _Stored:
    cheapest = await product.offers.find_cheapest_of_sellers(OfferFilter())
    offers = await product.offers.find_named([one.offer_id for one in cheapest])
    async with product.store.unit_of_work(EVERY_TEAM) as uow:
        feeds = await uow.offers.find_feeds()
        if team is None:
            keys = (await uow.ssh_keys.find_page(MOST_KEYS, None)).items
        else:
            keys = await uow.ssh_keys.find_of_team(team)
    return _Stored(
        checks,
        feeds={feed.provider: feed for feed in feeds},
        offers={offer.provider: offer for offer in offers},
        keys=tuple(keys),
        networks=await product.networks.find_all(),
    )


async def _installed(product: Product) -> tuple[Check, ...]:
    """Who leads the timetable, the database's clock, the key of stored secrets, and the own SSH key."""
    leader = await product.store.find_leader()
    running = (
        Check("leader", Finding.WARNING, "no broker runs: nothing is polled, and leases are not followed")
        if leader is None
        else Check("leader", Finding.FINE, f"process {leader} leads the timetable")
    )
    ahead = await product.store.told_time()
    found = [running]
    if ahead is not None:
        found.append(_skew("database's clock", ahead - datetime.now(UTC), "the database"))
    if product.settings.secrets_key is not None:
        found.append(Check("secrets key", Finding.FINE, "BROKER_SECRETS_KEY is set"))
    elif product.settings.database_url.startswith("sqlite"):
        says = "kept beside the SQLite file; keep a copy apart from the backups"
        found.append(Check("secrets key", Finding.FINE, says))
    else:
        says = "BROKER_SECRETS_KEY is not set, so the database keeps the secrets of webhooks as they are"
        found.append(Check("secrets key", Finding.WARNING, says))
    async with product.store.unit_of_work(EVERY_TEAM) as uow:
        own = await uow.accounts.find_own_public_key()
    says = "made with the first start over SSH" if own is None else own.fingerprint
    return (*found, Check("own SSH key", Finding.FINE, says))


def _clock(answers: Mapping[str, Held]) -> Check:
    """How far this machine's clock is off, by the sellers' answers."""
    told = {name: one.ahead for name, one in answers.items() if one.ahead is not None}
    if not told:
        return Check("clock", Finding.FINE, "not compared: no real seller said its time")
    name = max(told, key=lambda one: abs(told[one]))
    return _skew("clock", told[name], SPECS[name].title)


def _skew(name: str, ahead: timedelta, whose: str) -> Check:
    """``ahead``: how far the clock of ``whose`` is ahead of ours."""
    off_s = ahead.total_seconds()
    says = f"{abs(off_s):.0f} s {'behind' if off_s > 0 else 'ahead of'} that of {whose}"
    if abs(ahead) >= SKEW_REFUSED:
        return Check(name, Finding.FAILED, f"{says}; signed calls are refused: set this machine's clock")
    return Check(name, Finding.WARNING if abs(ahead) >= SKEW_TOLD else Finding.FINE, says)


def _orders(settings: Settings, rules: OrderRules) -> Check:
    """From which sellers is ordered, and the caps."""
    caps, real = spending_caps(settings), real_sellers(rules.modes, rules.modes)
    whose = [("all teams", caps.all_teams), *((f"team {team}", cap) for team, cap in caps.teams.items())]
    limits = [f"{name} {words}" for name, cap in whose if (words := _cap_words(cap))]
    capped = f"caps: {'; '.join(limits)}" if limits else "no spending cap is set"
    sellers = f"real sellers: {', '.join(real)}" if real else "no real seller is configured"
    warned = open_orders_warning(settings, rules.modes)
    finding = Finding.WARNING if warned else Finding.FINE
    return Check("orders", finding, f"BROKER_ORDERS is {settings.orders}; {sellers}; {capped}")


def _cap_words(cap: SpendingCap) -> str:
    limits = ((cap.usd_per_hour, "hour"), (cap.usd_per_day, "day"))
    return " and ".join(f"{usd_words(usd)} per {period}" for usd, period in limits if usd is not None)


def _ssh_keys(stored: _Stored, team: str | None) -> Check:
    if stored.keys is None:
        return Check("SSH keys", Finding.WARNING, "not known without the database")
    return ssh_keys_check([key.team for key in stored.keys], team)


def ssh_keys_check(teams: Sequence[str], team: str | None) -> Check:
    """``teams``: whose each stored public key is; ``team``: whose keys count (None: of any team)."""
    if not teams:
        whose = "no team has" if team is None else f"team {team} does not have"
        return Check("SSH keys", Finding.WARNING, f"{whose} one: broker ssh-keys --add ~/.ssh/id_ed25519.pub")
    counts = Counter(teams)
    says = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return Check("SSH keys", Finding.FINE, f"by team: {says}")


async def _sellers(
    environ: Mapping[str, str],
    reached: Mapping[str, ProviderSettings],
    rules: OrderRules,
    stored: _Stored,
    answers: Mapping[str, Held],
) -> tuple[SellerDiagnosis, ...]:
    """Every configured seller and every one whose credentials are incomplete; real ones first."""
    lacking = {name: _lacking(spec, environ) for name, spec in SPECS.items()}
    adapters, found = build_adapters(reached), []
    builders = network_builders(adapters)
    async with AsyncExitStack() as stack:
        for adapter in adapters.values():
            stack.push_async_callback(adapter.aclose)
        for name, spec in SPECS.items():
            if name in reached or lacking[name]:
                feed, offer = _read_of(stored, name, rules)
                lacks = [str(one) for one in spec.missing(reached[name])] if name in reached else []
                lacks += _keys_missing(adapters.get(name), offer, stored.keys)
                told = _credentials(name, reached, lacking[name], answers.get(name))
                network, gone = await network_standing(
                    builders.get(name), stored.networks, asks=name in answers
                )
                lacks += gone
                found.append(_seller(spec, rules, told, lacks, feed, network))
    return tuple(sorted(found, key=lambda one: (one.credentials is Credentials.SANDBOX, one.provider)))


def _read_of(stored: _Stored, name: str, rules: OrderRules) -> tuple[FeedHealth | None, Offer | None]:
    """The feed of a provider and its cheapest offer; none if they were read from the sandbox and the seller
    is real now, or the other way round.
    """
    offer = stored.offers.get(name)
    if offer is not None and name in rules.modes and offer.mode not in (None, rules.mode_of(name)):
        return None, None
    return stored.feeds.get(name), offer


def _seller(
    spec: ProviderSpec,
    rules: OrderRules,
    told: tuple[Credentials, str | None],
    lacks: Sequence[str],
    feed: FeedHealth | None,
    network: str | None,
) -> SellerDiagnosis:
    is_list, probe = spec.name in PRICE_LISTS, None if feed is None else feed.probe
    return SellerDiagnosis(
        provider=spec.name,
        title=spec.title,
        mode=None if is_list else rules.mode_of(spec.name),
        credentials=told[0],
        problem=told[1],
        calls=probe_calls(spec),
        orders_allowed=not is_list and rules.allows(spec.name),
        missing=tuple(lacks),
        network=network,
        verified_at=probe.at if probe is not None and not probe.findings else None,
        polled_at=None if feed is None else feed.last_success_at,
    )


async def network_standing(
    seller: NetworkSetup | None, known: Sequence[SellerNetwork], *, asks: bool
) -> tuple[str | None, list[str]]:
    """Where the network of a seller's machines comes from, and what is missing of it.

    (None, []): it needs none. ``asks``: the seller is asked whether what was made is still there.
    """
    if seller is None:
        return None, []
    if seller.names_network:
        return f"named by {seller.network_setting}", []
    made = [one for one in known if one.provider == seller.provider]
    command = f"broker providers setup {seller.provider} --from NETWORK"
    bare = [region for region in seller.network_regions() if network_of_region(made, region) is None]
    lacks = [f"a network in {', '.join(bare)}: {command}"] if any(bare) else []
    if not made:
        return f"none was made: {command}", lacks
    for one in made if asks else ():
        try:
            plan = await seller.plan_network(NetworkRules(one.sources), [one.region])
        except ProviderError as error:
            lacks.append(f"an answer about its network: {_without_name(error)}")
            continue
        lacks += [f"{part.says} in {one.region or 'all regions'}: {command}" for part in plan.missing]
    regions = ", ".join(one.region or "all regions" for one in made)
    return f"made in {regions} on {max(one.made_at for one in made):%Y-%m-%d}", lacks


def _lacking(spec: ProviderSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variables of required credentials that are not set although others of the seller are."""
    given = {name: bool(environ.get(spec.variable(name), "").strip()) for name in spec.credentials}
    return tuple(spec.variable(name) for name, is_set in given.items() if not is_set and any(given.values()))


def _credentials(
    name: str, reached: Mapping[str, ProviderSettings], lacking: Sequence[str], answer: Held | None
) -> tuple[Credentials, str | None]:
    if lacking:
        instead = "the sandbox is asked instead" if name in reached else "it is left out"
        return Credentials.INCOMPLETE, f"{', '.join(lacking)} not set, so {instead}"
    if reached[name].sandbox:
        return Credentials.SANDBOX, None
    if answer is None:
        return Credentials.FOUND, None
    if answer.error is None:
        return Credentials.ACCEPTED, None
    is_rejected = isinstance(answer.error, CredentialsRejected)
    return Credentials.REJECTED if is_rejected else Credentials.UNANSWERED, _without_name(answer.error)


def _without_name(error: ProviderError) -> str:
    return str(error).removeprefix(f"{error.provider}: ")


def _keys_missing(seller: Feed | None, offer: Offer | None, keys: Sequence[SshKey] | None) -> list[str]:
    """Why nobody could enter a machine of the seller; none where somebody can, or where it is not known."""
    if offer is None or keys is None or not isinstance(seller, ProviderAdapter):
        return []
    why = seller.locked_out(offer, [key.as_public_key for key in keys])
    return [why] if why else []
