"""Node counts that sellers sell: with a seller of 1, 2, 4 or 8 nodes, a run on 3 pays for 4. N node
counts.
"""

from __future__ import annotations

import numpy as np

from broker.domain.market.offer import Offer, WindowTerms
from optimizer.placement.problem.problem import ANY_COUNT, UNLIMITED_NODES, Bools, Ints, OfferTable


def bought_nodes(table: OfferTable, offers: Ints, counts: Ints) -> Ints:
    """Nodes [len(offers), N] to buy so that each count can work; more than any stock if no such count is
    sold.
    """
    bought: Ints = np.broadcast_to(counts, (len(offers), len(counts)))
    count_terms = table.count_terms_of[offers]
    if (count_terms != ANY_COUNT).any():
        bought = bought.copy()
        for number in np.unique(count_terms[count_terms != ANY_COUNT]):
            bought[count_terms == number] = _rounded(table.count_terms[int(number)], counts)
    return bought


def _rounded(terms: WindowTerms, counts: Ints) -> Ints:
    least = [terms.least_sold(int(count)) for count in counts]
    return np.array([UNLIMITED_NODES + 1 if n is None else n for n in least], dtype=np.int64)


def whole_only(bought: Ints, counts: Ints) -> Bools:
    """Entries where every bought node works."""
    mask: Bools = bought == counts[None, :]
    return mask


def sold_counts_rule(offer: Offer, working: int, bought: int) -> str:
    """Explains to a reader why more nodes are bought than work."""
    assert offer.window is not None
    words = offer.window.counts_in_words
    return f"{working} of {bought} bought nodes work: this seller sells {words}"
