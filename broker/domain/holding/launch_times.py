"""How long after an order a replica serves: node, image, weights, engine. Pure.

The median of our own launches of a seller and form of node counts once there are ``LEAST_LAUNCHES``; else
what the offer says of its node; else what a table says of the seller, or of any node of that form.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from broker.domain.basics.copies import copy_with
from broker.domain.basics.node_launch import LaunchBasis, NodeLaunch
from broker.domain.holding.launches import LaunchAttempt, LaunchOutcome
from broker.domain.market.learned import Basis, Learned
from broker.domain.market.offer import Offer
from broker.domain.market.sku import Form

LEAST_LAUNCHES = 3
MOST_LAUNCHES = 20
"""The last so many launches of a seller and form are looked at: sellers change."""


@dataclass(frozen=True, slots=True)
class FetchTerms:
    """What follows the launch: seconds until the engine's image is there, and at how many gigabytes (10⁹
    bytes) a second weights come; None: they lie there."""

    image_s: float
    weights_gbyte_s: float | None


Kind = tuple[str, str | None, Form | None]
"""Launches that are alike: a provider, whose nodes it sells, and their form."""


@dataclass(frozen=True, slots=True)
class LaunchTable:
    """What is known of launches where the offer says nothing.

    ``sellers``: seconds and basis by (provider, form); ``forms``: seconds assumed by form, None for offers
    that state no form. An empty table tells nothing.
    """

    sellers: Mapping[tuple[str, Form | None], tuple[float, LaunchBasis]] = field(
        default_factory=dict, hash=False
    )
    forms: Mapping[Form | None, float] = field(default_factory=dict, hash=False)
    fetch: FetchTerms = FetchTerms(0.0, None)

    def told(self, offers: Iterable[Offer], attempts: Sequence[LaunchAttempt] = ()) -> tuple[Offer, ...]:
        """``offers``, each with its launch; ``attempts``: our own orders."""
        offers = tuple(offers)
        if not self.forms:
            return offers
        own = own_launches(offers, attempts)
        return tuple(copy_with(offer, launch=self._launch(offer, own)) for offer in offers)

    def _launch(self, offer: Offer, own: Mapping[Kind, float]) -> NodeLaunch:
        """The node, and then its image and weights. A container that runs has its image, so that none is
        pulled after a launch of containers that was measured."""
        form, said, fetch = offer.sku.form, offer.launch, self.fetch
        if said is not None and said.is_whole:
            return said
        measured_s = own.get(_kind_of(offer), _learned_s(offer.learned))
        if measured_s is not None:
            image_s = 0.0 if form is Form.CONTAINER else fetch.image_s
            return NodeLaunch(measured_s, LaunchBasis.MEASURED, image_s, fetch.weights_gbyte_s)
        assumed = self.sellers.get((offer.provider, form), (self.forms[form], LaunchBasis.ASSUMED))
        launch_s, basis = assumed if said is None else (said.launch_s, said.basis)
        return NodeLaunch(launch_s, basis, fetch.image_s, fetch.weights_gbyte_s)


def own_launches(offers: Iterable[Offer], attempts: Iterable[LaunchAttempt]) -> Mapping[Kind, float]:
    """Median seconds of our last launches of each kind, where there are enough.

    An attempt names its SKU; seller and form are those of the offers of this SKU that are on sale.
    """
    kind_of = {(offer.provider, offer.sku.name): _kind_of(offer) for offer in offers}
    seconds: defaultdict[Kind, list[float]] = defaultdict(list)
    for attempt in sorted(attempts, key=lambda one: one.asked_at):
        kind = kind_of.get((attempt.provider, attempt.sku))
        if kind is not None and attempt.outcome is LaunchOutcome.USABLE and attempt.minutes is not None:
            seconds[kind].append(60 * attempt.minutes)
    return {kind: median(s[-MOST_LAUNCHES:]) for kind, s in seconds.items() if len(s) >= LEAST_LAUNCHES}


def _learned_s(learned: Learned | None) -> float | None:
    """What a document tells of our launches of this very offer or SKU, where there were enough."""
    if learned is None or learned.basis is Basis.PROVIDER or learned.attempts < LEAST_LAUNCHES:
        return None
    return 60 * learned.minutes_to_usable


def _kind_of(offer: Offer) -> Kind:
    return offer.provider, offer.seller, offer.sku.form
