"""How long a node takes from the order until the engine's weights can be loaded. Pure.

The first of these that is known counts: the median of our own launches at the seller in this form of node
(from ``LEAST_LAUNCHES`` on), the launch time that the offer states, the table's value for the seller, and
the table's value for the form.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from broker.domain.basics.copies import copy_with
from broker.domain.basics.node_launch import LaunchBasis, NodeLaunch
from broker.domain.holding.launches import LaunchAttempt, LaunchOutcome
from broker.domain.market.launch_statistics import LaunchStatistics, StatisticsLevel
from broker.domain.market.offer import Offer
from broker.domain.market.sku import Form

LEAST_LAUNCHES = 3
MOST_LAUNCHES = 20
"""Only this many of the latest launches count, because sellers change."""


@dataclass(frozen=True, slots=True)
class FetchTerms:
    """What follows the launch: the seconds to pull the image, and the download rate of weights.

    The rate is in GB (10⁹ bytes) per second; None if the weights are on the node already.
    """

    image_s: float
    weights_gbyte_s: float | None


Kind = tuple[str, str | None, Form | None]
"""Launches that are comparable: provider, the seller behind it, and the form of the node."""


@dataclass(frozen=True, slots=True)
class LaunchTable:
    """Launch times for offers that state none.

    ``sellers`` gives seconds and basis by (provider, form). ``forms`` gives assumed seconds by form, with
    None for offers that state no form. An empty table leaves offers unchanged.
    """

    sellers: Mapping[tuple[str, Form | None], tuple[float, LaunchBasis]] = field(
        default_factory=dict, hash=False
    )
    forms: Mapping[Form | None, float] = field(default_factory=dict, hash=False)
    fetch: FetchTerms = FetchTerms(0.0, None)

    def with_launch_times(
        self, offers: Iterable[Offer], attempts: Sequence[LaunchAttempt] = ()
    ) -> tuple[Offer, ...]:
        """``offers``, each with its launch time. ``attempts`` are the outcomes of our own orders."""
        offers = tuple(offers)
        if not self.forms:
            return offers
        own = own_launches(offers, attempts)
        return tuple(copy_with(offer, launch=self._launch(offer, own)) for offer in offers)

    def _launch(self, offer: Offer, own: Mapping[Kind, float]) -> NodeLaunch:
        """The launch time of ``offer``.

        A measured launch of a container includes its image, since a container that runs has been pulled.
        """
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
    """Median seconds of our latest launches of each kind that has at least LEAST_LAUNCHES.

    An attempt only names its SKU. Seller and form come from the current offers of that SKU.
    """
    kind_of = {(offer.provider, offer.sku.name): _kind_of(offer) for offer in offers}
    seconds: defaultdict[Kind, list[float]] = defaultdict(list)
    for attempt in sorted(attempts, key=lambda one: one.asked_at):
        kind = kind_of.get((attempt.provider, attempt.sku))
        if kind is not None and attempt.outcome is LaunchOutcome.USABLE and attempt.minutes is not None:
            seconds[kind].append(60 * attempt.minutes)
    return {kind: median(s[-MOST_LAUNCHES:]) for kind, s in seconds.items() if len(s) >= LEAST_LAUNCHES}


def _learned_s(learned: LaunchStatistics | None) -> float | None:
    """Seconds from the offer's own launch statistics, if enough launches of this offer or SKU are in them."""
    if learned is None or learned.basis is StatisticsLevel.PROVIDER or learned.attempts < LEAST_LAUNCHES:
        return None
    return 60 * learned.minutes_to_usable


def _kind_of(offer: Offer) -> Kind:
    return offer.provider, offer.seller, offer.sku.form
