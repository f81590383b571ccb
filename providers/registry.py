"""The list of providers, and which of them an environment configures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType

from broker.domain.basics.errors import NotFound
from broker.domain.market.offer import Offer
from broker.domain.market.seller_mode import Modes, SellerMode
from providers import (
    aws,
    azure,
    crusoe,
    cudo,
    digitalocean,
    gcp,
    gpuhunt,
    hotaisle,
    hyperstack,
    lambda_cloud,
    latitude,
    mithril,
    oci,
    ovh,
    prime_intellect,
    runpod,
    scaleway,
    sfcompute,
    shadeform,
    skypilot,
    tensordock,
    together,
    vast,
    verda,
    vultr,
)
from providers.client import Seller
from providers.http import HttpFactory, ProviderHttp
from providers.network_setup import NetworkSetup
from providers.spec import (
    Capability,
    Feed,
    Missing,
    ProviderAdapter,
    ProviderSettings,
    ProviderSpec,
    settings_from_environment,
)

SPECS: Mapping[str, ProviderSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            lambda_cloud.SPEC,
            runpod.SPEC,
            vast.SPEC,
            verda.SPEC,
            aws.SPEC,
            azure.SPEC,
            gcp.SPEC,
            sfcompute.SPEC,
            shadeform.SPEC,
            oci.SPEC,
            latitude.SPEC,
            vultr.SPEC,
            prime_intellect.SPEC,
            mithril.SPEC,
            digitalocean.SPEC,
            hotaisle.SPEC,
            skypilot.SPEC,
            gpuhunt.SPEC,
            hyperstack.SPEC,
            together.SPEC,
            cudo.SPEC,
            scaleway.SPEC,
            crusoe.SPEC,
            tensordock.SPEC,
            ovh.SPEC,
        )
    }
)
"""Every provider by its key."""
PRICE_LISTS = frozenset(name for name, spec in SPECS.items() if Capability.RESERVE not in spec.capabilities)
"""Price lists: they state other sellers' prices, and nothing can be ordered from them."""


def find_spec(name: str) -> ProviderSpec:
    """The spec of a provider key; NotFound names the known keys."""
    if name not in SPECS:
        raise NotFound("provider", name, f"known: {', '.join(SPECS)}")
    return SPECS[name]


def configured(
    environ: Mapping[str, str], sandbox_url: str | None = None, *, keyless: bool = False
) -> Mapping[str, ProviderSettings]:
    """Settings of every provider that ``environ`` configures, by key.

    ``sandbox_url`` is the default of ``BROKER_SANDBOX_URL``; ``keyless`` adds the providers whose feeds are
    open.
    """
    sandbox = environ.get("BROKER_SANDBOX_URL") or sandbox_url
    found = {
        name: settings_from_environment(spec, environ, sandbox, keyless=keyless)
        for name, spec in SPECS.items()
    }
    return {name: settings for name, settings in found.items() if settings is not None}


def build_adapters(
    settings: Mapping[str, ProviderSettings], http_factory: HttpFactory = ProviderHttp
) -> Mapping[str, Feed]:
    """An adapter for each provider of ``settings``; the caller closes them.

    A seller whose settings lack something that its orders need says so (``Seller.barred``).
    """
    adapters = {name: find_spec(name).build(each, http_factory) for name, each in settings.items()}
    for name, missing in missing_settings(settings).items():
        adapter = adapters[name]
        if isinstance(adapter, Seller):
            adapter.missing = missing
    return adapters


def missing_settings(settings: Mapping[str, ProviderSettings]) -> Mapping[str, tuple[Missing, ...]]:
    """The missing settings of sellers that, as configured, refuse some orders, by provider key."""
    found = {
        name: find_spec(name).missing(each) for name, each in settings.items() if name not in PRICE_LISTS
    }
    return {name: missing for name, missing in found.items() if missing}


def seller_modes(settings: Mapping[str, ProviderSettings]) -> Modes:
    """Whether each seller is real or the sandbox's, by provider key; price lists sell nothing."""
    return {
        name: SellerMode.SANDBOX if each.sandbox else SellerMode.REAL
        for name, each in settings.items()
        if name not in PRICE_LISTS
    }


def not_orderable(settings: Mapping[str, ProviderSettings]) -> Mapping[str, tuple[Missing, ...]]:
    """The missing settings of sellers that, as configured, take no order at all, by provider key."""
    found = missing_settings(settings)
    return {name: missing for name, missing in found.items() if any(one.only is None for one in missing)}


def can_be_ordered(settings: Mapping[str, ProviderSettings]) -> Callable[[Offer], bool]:
    """Returns a test of offers: whether the seller takes orders of this offer.

    It ignores sellers that take no orders at all (``not_orderable``).
    """
    parts = {
        name: missing
        for name, missing in missing_settings(settings).items()
        if name not in not_orderable(settings)
    }
    return lambda offer: not any(one.bars(offer) for one in parts.get(offer.provider, ()))


def is_orderable(name: str, settings: Mapping[str, ProviderSettings]) -> bool:
    """Whether the provider ``name`` takes orders as ``settings`` configure it."""
    return name in settings and name not in PRICE_LISTS and name not in not_orderable(settings)


def is_sold(offer: Offer, settings: Mapping[str, ProviderSettings]) -> bool:
    """Whether the seller takes an order of ``offer`` as ``settings`` configure it."""
    return is_orderable(offer.provider, settings) and can_be_ordered(settings)(offer)


def not_planned(settings: Mapping[str, ProviderSettings]) -> frozenset[str]:
    """Providers whose offers are not used in plans: price lists, and sellers that take no orders.

    If no seller takes orders, only the price lists are left out, so that plans show what could be had.
    """
    closed = frozenset(not_orderable(settings))
    is_open = any(name not in closed | PRICE_LISTS for name in settings)
    return PRICE_LISTS | closed if is_open else PRICE_LISTS


def poll_intervals(settings: Mapping[str, ProviderSettings]) -> Mapping[str, timedelta]:
    """Poll intervals of feeds that are not read in every poll.

    None on a sandbox, whose prices change at once.
    """
    slow = {name: find_spec(name).poll_every_s for name, each in settings.items() if not each.sandbox}
    return {name: timedelta(seconds=seconds) for name, seconds in slow.items() if seconds}


def network_builders(feeds: Mapping[str, Feed]) -> Mapping[str, NetworkSetup]:
    """The feeds whose machines join a network that is made once."""
    return {name: feed for name, feed in feeds.items() if isinstance(feed, NetworkSetup)}


def sellers(feeds: Mapping[str, Feed]) -> Mapping[str, ProviderAdapter]:
    """The feeds that sell."""
    return {name: feed for name, feed in feeds.items() if isinstance(feed, ProviderAdapter)}
