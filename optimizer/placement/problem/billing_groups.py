"""Offers grouped by billing terms. Within a group only price, stock and place differ, so one search answers
for all.

A group is a kind of node under one set of billing terms (``OfferTable.billing_group_of``). O offers, S
groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from optimizer.placement.problem.problem import UNLIMITED_NODES, Bools, Floats, Ints, OfferTable

NEVER = UNLIMITED_NODES + 1
"""A node count that exceeds every stock."""
_BASE = UNLIMITED_NODES + 2


class Limit(Enum):
    """What limits the nodes of one offer: its fabric, its stock, or the smaller of both."""

    JOINED = "joined"
    STOCK = "stock"
    BOTH = "both"


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What the offers of each group [S] have in common; ``interrupted``: they can be interrupted;
    ``held_on``: they can be held until a run is done.
    """

    kind: Ints
    min_s: Ints
    increment_s: Ints
    is_window: Bools
    interrupted: Bools
    held_on: Bools

    def __len__(self) -> int:
        return len(self.kind)

    def billed_s(self, groups: Ints, held_s: Ints) -> Ints:
        """Billed seconds of one node that is held for ``held_s`` without a break."""
        increment = self.increment_s[groups]
        billed: Ints = -(-np.maximum(held_s, self.min_s[groups]) // increment) * increment
        return billed


@dataclass(frozen=True, slots=True, eq=False)
class _Ranked:
    """Offers in ascending order of (group, value), with each pair encoded as one integer key."""

    offer: Ints
    key: Ints

    def only(self, passing: Bools) -> _Ranked:
        kept = passing[self.offer]
        return _Ranked(self.offer[kept], self.key[kept])


@dataclass(frozen=True, slots=True, eq=False)
class BillingGroups:
    """Offers ordered by group; group s occupies positions ``first[s]`` to ``first[s + 1]``. ``first`` is [S +
    1].
    """

    terms: Terms
    prices: Floats
    first: Ints
    _by_price: _Ranked
    _by_limit: Mapping[Limit, _Ranked]

    @property
    def offer(self) -> Ints:
        """All offers, by group, each group cheapest first."""
        return self._by_price.offer

    def least_usd(self, group: Ints) -> Floats:
        """The lowest price in each of ``group``; none of these groups may be empty."""
        least: Floats = self.prices[self._by_price.key[self.first[group]] % (len(self.prices) + 1)]
        return least

    @property
    def sizes(self) -> Ints:
        """Number of offers in each group [S]."""
        return np.diff(self.first)

    def at_most(self, group: Ints, usd: Floats) -> Ints:
        """How many offers of each of ``group`` cost at most ``usd`` a node-hour; they are the first of their
        group.
        """
        rank = np.searchsorted(self.prices, usd, side="right")
        found: Ints = np.searchsorted(self._by_price.key, group * (len(self.prices) + 1) + rank)
        return found - self.first[group]

    def with_nodes(self, limit: Limit, group: Ints, nodes: Ints) -> Ints:
        """How many offers of each of ``group`` allow at least ``nodes``."""
        wanted = group * _BASE + np.clip(nodes, 0, NEVER)
        found: Ints = self.first[group + 1] - np.searchsorted(self._by_limit[limit].key, wanted)
        return found

    def cheapest(self, group: Ints, counts: Ints) -> tuple[Ints, Ints]:
        """The ``counts`` cheapest offers of each of ``group``, concatenated; and for each the index into
        ``group``.
        """
        which, within = runs_of(counts)
        return self.offer[self.first[group[which]] + within], which

    def allowing(self, limit: Limit, group: Ints, nodes: Ints) -> tuple[Ints, Ints]:
        """Offers of each of ``group`` that allow at least ``nodes``, concatenated; and for each the index
        into ``group``.
        """
        counts = self.with_nodes(limit, group, nodes)
        which, within = runs_of(counts)
        return self._by_limit[limit].offer[(self.first[group + 1] - counts)[which] + within], which

    def by_price(self) -> BillingGroups:
        """A copy without the orders by limit, which only questions about prices need."""
        return replace(self, _by_limit={})

    def only(self, passing: Bools) -> BillingGroups:
        """The same groups, restricted to the offers of ``passing`` [O]."""
        by_price = self._by_price.only(passing)
        first = np.searchsorted(by_price.key, np.arange(len(self.first)) * (len(self.prices) + 1))
        by_limit = {limit: ranked.only(passing) for limit, ranked in self._by_limit.items()}
        return BillingGroups(self.terms, self.prices, first, by_price, by_limit)


def runs_of(counts: Ints) -> tuple[Ints, Ints]:
    """Concatenates the ranges 0 … counts[0] − 1, 0 … counts[1] − 1, …; returns the range of each entry, and
    the entry.
    """
    which = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    begin = np.repeat(np.cumsum(counts) - counts, counts)
    return which, np.arange(len(which), dtype=np.int64) - begin


def limit_of(table: OfferTable, limit: Limit) -> Ints:
    """Nodes [O] that the limit allows of each offer."""
    if limit is Limit.STOCK:
        return table.stock_nodes
    joined = np.minimum(table.joined_nodes, UNLIMITED_NODES)
    return joined if limit is Limit.JOINED else np.minimum(joined, table.stock_nodes)


def build_billing_groups(table: OfferTable) -> BillingGroups:
    """Groups all offers of a market by their billing terms."""
    group, count = table.billing_group_of, int(table.billing_group_of.max(initial=-1)) + 1
    example = np.zeros(count, dtype=np.int64)
    example[group] = np.arange(len(table))
    terms = Terms(
        kind=table.sku_of[example],
        min_s=table.min_s[example],
        increment_s=table.increment_s[example],
        is_window=table.is_window[example],
        interrupted=table.interruptions_per_hour[example] > 0,
        held_on=table.is_held_on[example],
    )
    prices, rank = np.unique(table.price_usd, return_inverse=True)
    by_price = _ranked(group * (len(prices) + 1) + rank.reshape(-1))
    by_limit = {limit: _ranked(group * _BASE + limit_of(table, limit)) for limit in Limit}
    first = np.searchsorted(group[by_price.offer], np.arange(count + 1))
    return BillingGroups(terms, prices, first, by_price, by_limit)


def _ranked(keys: Ints) -> _Ranked:
    order = np.argsort(keys, kind="stable").astype(np.int64)
    return _Ranked(order, keys[order])
