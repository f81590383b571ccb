"""What an adapter is, and what its file must give: one ``SPEC``.

An adapter file holds, in this order: a docstring (what is sold, units on the wire, what the answer does
not say) · private payload models · ``parse_offers`` (pure: the same bytes give the same offers) · a thin
client that fulfils ``broker.ports.unit_of_work.OfferSource`` and ``broker.ports.holding.Reserver``, mostly a
``providers.client.SellerClient`` · ``SPEC``. One that outgrows a file becomes a package of the same order:
``__init__`` (docstring, ``SPEC``), ``offers`` (models, parsing), ``adapter`` (client).

The contract, which ``tests/contract`` checks for every entry of the registry:

- every row of a payload becomes offers or a ``RejectedRow`` with a reason; a payload that is not what
  the provider documents raises ``PayloadUnreadable``, and nothing else ever escapes a parser;
- ``offer_id`` is ``<provider>/…``, stable from poll to poll, unique within a batch;
- prices are per node and hour, the native price stays beside them; nothing is guessed;
- capabilities are equal to what the class implements and its recorded payloads show;
- one call buys one lease, and the order's tag comes back from ``list_leases``;
- no credential appears in any error.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol, runtime_checkable

from broker.domain.basics.errors import FieldProblem, InputError, OrderRejected
from broker.domain.holding.reservation import Idempotency, Order
from broker.domain.market.offer import Offer, OfferBatch
from broker.ports.holding import Reserver
from broker.ports.unit_of_work import OfferSource
from providers.http import HttpFactory, HttpPolicy, is_loopback
from providers.schema import Rows

EVERY_PROVIDER_HAS = ("base_url", "min_interval_s", "timeout_s")
NEAR_ENOUGH_TO_REFUSE = 0.88
"""The similarity of two variable names above which one is taken for a misspelling of the other."""
NamedPayload = tuple[str, bytes]
"""A recorded answer: file name and content."""


class Capability(StrEnum):
    """A capability of an adapter; an absent one means that it lacks it."""

    OFFERS = "offers"
    AVAILABILITY = "availability"
    SPOT = "spot"
    WINDOWS = "windows"
    RESERVE = "reserve"
    FIND_LEASE = "find_lease"
    LIST_LEASES = "list_leases"
    RELEASE = "release"
    MULTI_NODE = "multi_node"
    LEASE_PRICE = "lease_price"
    DRY_RUN = "dry_run"


HOLDING = frozenset(
    {
        Capability.OFFERS,
        Capability.AVAILABILITY,
        Capability.RESERVE,
        Capability.FIND_LEASE,
        Capability.LIST_LEASES,
        Capability.RELEASE,
    }
)
"""The capabilities of a seller whose API sells, lists and releases capacity."""


@dataclass(frozen=True, slots=True)
class Need:
    """A setting without a default that a seller's orders need.

    ``names``: options, of which one is enough. ``says``: what to enter. ``stand_in``: the value for a test
    market. ``is_met``: whether settings meet the need in another way. ``only``: the offers whose orders
    need it; None: all. ``in_order``: orders that carry a public SSH key meet it themselves, so that it is
    never missing.
    """

    names: tuple[str, ...]
    says: str
    stand_in: str
    is_met: Callable[[ProviderSettings], bool] = lambda _: False
    only: Callable[[Offer], bool] | None = None
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class Missing:
    """Variables of which one must be set before anything can be ordered, and what to enter.

    ``only``: the offers that cannot be ordered without it; None: all.
    """

    variables: tuple[str, ...]
    says: str
    only: Callable[[Offer], bool] | None = None

    def bars(self, offer: Offer) -> bool:
        """Whether ``offer`` cannot be ordered without it."""
        return self.only is None or self.only(offer)

    def __str__(self) -> str:
        return f"{' or '.join(self.variables)} ({self.says})"


@dataclass(frozen=True, slots=True)
class Secret:
    """Text that is hidden in logs and representations."""

    value: str = field(repr=False)

    def __str__(self) -> str:
        return "***"


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """Address and account of a provider.

    ``credentials`` and ``options`` have the names of the spec. ``min_interval_s`` None: the provider's
    documented pace; ``timeout_s`` None: the adapter's own limits. ``keyless``: no credentials, only open
    feeds. ``sandbox``: the market server, which accepts any credential.
    """

    provider: str
    base_url: str
    credentials: Mapping[str, Secret]
    options: Mapping[str, str]
    min_interval_s: float | None = None
    timeout_s: float | None = None
    tag_prefix: str = "broker"
    keyless: bool = False
    sandbox: bool = False

    def secret(self, name: str) -> str:
        """The credential ``name``; empty when there is none."""
        found = self.credentials.get(name)
        return found.value if found is not None else ""

    @property
    def secrets(self) -> tuple[str, ...]:
        """All credentials, to remove them from errors."""
        return tuple(secret.value for secret in self.credentials.values())

    def tuned(self, policy: HttpPolicy) -> HttpPolicy:
        """``policy`` with the configured pace and timeout; calls to this machine are not paced."""
        if self.timeout_s is not None:
            policy = policy.with_timeout(self.timeout_s)
        if self.min_interval_s is not None:
            return policy.with_interval(self.min_interval_s)
        return policy.with_interval(0.0) if is_loopback(self.base_url) else policy


class Feed(OfferSource, Protocol):
    """The least that ``build`` returns: a source of offers.

    A price list is no more.
    """

    async def aclose(self) -> None:
        """Closes its connections."""
        ...


@runtime_checkable
class TellsPauses(Protocol):
    """A client that says which calls its circuit breakers hold back."""

    def paused_until(self) -> Mapping[str, datetime]:
        """Until when nothing is sent, by kind of call; empty where calls are sent."""
        ...


@runtime_checkable
class ProviderAdapter(Feed, Reserver, Protocol):
    """A source of offers that can be ordered."""


@runtime_checkable
class RunsDry(Protocol):
    """A seller that validates an hourly order without accepting it."""

    async def dry_run(self, order: Order) -> None:
        """Sends ``order`` as a dry run; raises the error that the order would raise.

        OutcomeUnknown where the answer is that of an accepted order.
        """
        ...


def refuse_unless_single(order: Order, provider: str, longest_tag: int) -> None:
    """For providers that sell one node per call: OrderRejected for more, or for a tag that they would cut."""
    if order.nodes != 1:
        raise OrderRejected(provider, f"one call orders one node, not {order.nodes}")
    refuse_long_tag(order, provider, longest_tag)


def refuse_long_tag(order: Order, provider: str, longest_tag: int) -> None:
    """OrderRejected for a tag that the provider would cut, because then no lease could be found by it."""
    if len(order.tag) > longest_tag:
        raise OrderRejected(
            provider, f"the tag has {len(order.tag)} characters, but the seller keeps only {longest_tag}"
        )


Build = Callable[[ProviderSettings, HttpFactory], Feed]
Parse = Callable[[Sequence[NamedPayload], datetime], OfferBatch]


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """One provider.

    ``name``: its key, also its path in a sandbox. ``base_url``: the real host. ``credentials``: names whose
    variables are ``BROKER_<KEY>_<NAME>`` in upper case, each with a description; all are required,
    ``optional_credentials`` are not. ``options``: settings that are not secret, with their defaults. Every
    provider also has ``…_BASE_URL``, ``…_MIN_INTERVAL_S`` and ``…_TIMEOUT_S``. ``keyless``: ``list_offers``
    works without credentials. ``adapter``: the class that ``build`` creates. ``idempotency`` None: nothing
    can be ordered. ``needs``: options without a default that orders need. ``rows``: the kinds of rows that
    its probe compares. ``poll_every_s``: how often prices change at most, so how often the
    provider is polled. ``name_of_cloud``: for a catalogue with a file per cloud, the name under which
    ``parse`` expects one, from the cloud and the file's own name.
    """

    name: str
    title: str
    base_url: str
    credentials: Mapping[str, str]
    capabilities: frozenset[Capability]
    idempotency: Idempotency | None
    adapter: type[Feed]
    build: Build
    parse: Parse
    rows: tuple[Rows, ...] = ()
    keyless: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    optional_credentials: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[Need, ...] = ()
    poll_every_s: float = 0.0
    name_of_cloud: Callable[[str, str], str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Every credential and option, by the names that ``variable`` accepts."""
        return (*self.credentials, *self.optional_credentials, *self.options, *EVERY_PROVIDER_HAS)

    def variable(self, name: str) -> str:
        """The environment variable of a credential or option."""
        return f"BROKER_{self.name.upper()}_{name.upper()}"

    @property
    def stand_ins(self) -> Mapping[str, str]:
        """Options with which a test market accepts orders: the defaults, and a value for each need."""
        return {**self.options, **{need.names[0]: need.stand_in for need in self.needs}}

    def missing(self, settings: ProviderSettings) -> tuple[Missing, ...]:
        """What prevents orders as configured; empty where they can be sent."""
        if settings.keyless:
            return tuple(Missing((self.variable(name),), says) for name, says in self.credentials.items())
        return tuple(
            Missing(tuple(self.variable(name) for name in need.names), need.says, need.only)
            for need in self.needs
            if not any(settings.options[name] for name in need.names)
            and not (need.in_order or need.is_met(settings))
        )


def settings_from_environment(
    spec: ProviderSpec, environ: Mapping[str, str], sandbox_url: str | None, *, keyless: bool = False
) -> ProviderSettings | None:
    """Settings of ``spec``, or None when the provider is not configured.

    Its own credentials (or base URL) take precedence, then the sandbox, if one is named, then the open
    feeds, if ``keyless`` is requested and possible. A base URL in the sandbox is the sandbox. InputError for
    an empty setting, except for a credential, which then counts as missing.
    """
    _refuse_empty(spec, environ)
    _refuse_slips(spec, environ)
    own_url = environ.get(spec.variable("base_url"), "").strip()
    credentials = _credentials(spec, environ)
    configured = credentials is not None or bool(own_url)
    is_there = bool(sandbox_url) and f"{own_url}/".startswith(f"{sandbox_url}".rstrip("/") + "/")
    sandbox = bool(sandbox_url) and (not configured or is_there)
    open_feeds = not configured and not sandbox and keyless and spec.keyless
    if not (configured or sandbox or open_feeds):
        return None
    stand_in = {} if open_feeds else dict.fromkeys(spec.credentials, Secret("sandbox"))
    defaults = spec.options if open_feeds or credentials is not None else spec.stand_ins
    home = f"{sandbox_url.rstrip('/')}/{spec.name}" if sandbox and sandbox_url else spec.base_url
    return ProviderSettings(
        provider=spec.name,
        base_url=(own_url or home).rstrip("/"),
        credentials=stand_in if credentials is None else credentials,
        options={name: environ.get(spec.variable(name)) or value for name, value in defaults.items()},
        min_interval_s=_seconds(spec.variable("min_interval_s"), environ),
        timeout_s=_seconds(spec.variable("timeout_s"), environ),
        keyless=open_feeds,
        sandbox=sandbox,
    )


def _refuse_empty(spec: ProviderSpec, environ: Mapping[str, str]) -> None:
    """Refuses empty settings: an empty URL would mean the real seller, an empty credential the sandbox."""
    given = {
        name: environ[spec.variable(name)].strip() for name in spec.names if spec.variable(name) in environ
    }
    some = any(given.get(name) for name in spec.credentials)
    wrong = {name for name, text in given.items() if not text and name not in spec.optional_credentials}
    wrong -= set() if some else set(spec.credentials)
    problems = tuple(
        FieldProblem(spec.variable(name), '""', f"a value; unset it {_without(spec, name)}")
        for name in sorted(wrong)
    )
    if problems:
        raise InputError("environment or broker.toml", problems)


def _without(spec: ProviderSpec, name: str) -> str:
    """What happens without the setting ``name``."""
    if name in spec.credentials:
        return f"and the rest of the credentials of {spec.name} to do without that provider"
    default = spec.base_url if name == "base_url" else spec.options.get(name)
    return f"for {default}" if default else "to leave it to the adapter"


def _refuse_slips(spec: ProviderSpec, environ: Mapping[str, str]) -> None:
    """Refuses misspelled names, which would leave a default in force: another account's project, the real
    seller."""
    prefix, known = spec.variable(""), [spec.variable(name) for name in spec.names]
    strange = sorted(name for name in environ if name.startswith(prefix) and name not in known)
    near = {
        name: difflib.get_close_matches(name, known, n=1, cutoff=NEAR_ENOUGH_TO_REFUSE) for name in strange
    }
    slips = tuple(FieldProblem(name, "no such setting", meant[0]) for name, meant in near.items() if meant)
    if slips:
        raise InputError("environment or broker.toml", slips)


def _credentials(spec: ProviderSpec, environ: Mapping[str, str]) -> Mapping[str, Secret] | None:
    """The provider's own credentials, or None when a required one is missing."""
    names = (*spec.credentials, *spec.optional_credentials)
    found = {name: Secret(environ.get(spec.variable(name), "").strip()) for name in names}
    if not spec.credentials or not all(found[name].value for name in spec.credentials):
        return None
    return {name: secret for name, secret in found.items() if secret.value}


def _seconds(variable: str, environ: Mapping[str, str]) -> float | None:
    text = environ.get(variable, "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        problem = FieldProblem(variable, repr(text), "seconds, zero or more")
        raise InputError("environment", (problem,))
    return seconds
