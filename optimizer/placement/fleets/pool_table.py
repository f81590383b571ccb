"""Pools as a table: one column for each attribute of a part, and costs by level, concatenated over parts.

L pools or parts, R levels, N levels of all parts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from optimizer.placement.problem.problem import NEVER_GONE, Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Costs of a pool (or part) by level, which is the number of ready bundles of replicas.

    - ``usd`` [R]: cheapest hour of each level; ``counts`` [R, n]: nodes of ``units`` [n] for it.
    - ``least_usd`` [R]: lower bound on every fleet at that level; it charges one replica more than the level
      below.
    - ``start_usd`` [R]: cost of starting the nodes of a level; ``least_start_usd`` [R]: a lower bound that is
      linear in the replicas beyond the committed ones.
    - ``rate``: requests/s of one bundle of ``bundle`` replicas, ``later_share`` times as many in the second
      stage; ``deviation``: standard deviation of its logarithm.
    - ``term_h``: minimum term in hours (0: none); ``full_share``: their full price as a multiple of
      the rate, of which ``paid_share`` is no dual price (``Terms``); ``begin_usd``: start cost of each level
      that is held in the first hour.
    - ``until_s``: none of the part's nodes exists after this second; ``sure_s``: all of them exist until
      then.
    """

    gpu: int
    place: int
    rate: float
    units: Ints
    usd: Floats
    counts: Ints
    least_usd: Floats
    start_usd: Floats
    least_start_usd: Floats
    bundle: int
    begin_usd: float = 0.0
    term_h: float = 0.0
    full_share: float = 1.0
    paid_share: float = 1.0
    until_s: int = NEVER_GONE
    sure_s: int = NEVER_GONE
    later_share: float = 1.0
    deviation: float = 0.0

    @property
    def most(self) -> int:
        """The highest level."""
        return len(self.usd) - 1


@dataclass(frozen=True, eq=False)
class PoolTable:
    """All parts of the pools of a service. ``row`` [L]: index in the original table; ``owner`` [L]: equal for
    the parts of one pool.

    ``money`` [4, N] holds the levels 0 to ``most`` of all parts, concatenated; those of part l are
    ``begin[l]`` to ``begin[l + 1]``. Most pools have few levels and some have hundreds, so dense tables [L,
    R], which are inf above ``most``, are built only for the pools that a search keeps.
    """

    pools: Sequence[Pool]
    row: Ints
    owner: Ints
    gpu: Ints
    place: Ints
    rate: Floats
    later_rate: Floats
    deviation: Floats
    most: Ints
    begin_usd: Floats
    term_h: Floats
    full_share: Floats
    paid_share: Floats
    until_s: Ints
    sure_s: Ints
    money: Floats

    def __len__(self) -> int:
        return len(self.pools)

    @classmethod
    def nothing(cls) -> PoolTable:
        """The empty table."""
        return table_of([], [])

    def take(self, at: Sequence[int] | Ints) -> PoolTable:
        """The pools at the indices ``at``."""
        rows = np.asarray(at, dtype=np.int64)
        plain = (getattr(self, name)[rows] for name in PLAIN)
        columns: Columns = (*plain, taken_levels(self.money, self.most, rows))
        return PoolTable(Taken(self.pools, rows), self.row[rows], *columns)

    @cached_property
    def stage_rates(self) -> Floats:
        """Requests/s [2, L] of a bundle in each stage."""
        return np.stack((self.rate, self.later_rate))

    @cached_property
    def begin(self) -> Ints:
        """Offsets [L + 1] of the levels of each pool in ``money``."""
        return begins(self.most)

    @cached_property
    def usd(self) -> Floats:
        """USD [L, R] an hour of each level."""
        return self._by_level(0)

    @cached_property
    def least_usd(self) -> Floats:
        """Lower bound on the USD [L, R] an hour of each level."""
        return self._by_level(1)

    @cached_property
    def start_usd(self) -> Floats:
        """USD [L, R] of starting each level."""
        return self._by_level(2)

    @cached_property
    def least_start_usd(self) -> Floats:
        """Lower bound on the USD [L, R] of starting each level."""
        return self._by_level(3)

    def _by_level(self, which: int) -> Floats:
        levels = np.arange(int(self.most.max(initial=0)) + 1)
        found = np.full((len(self), len(levels)), np.inf)
        found[levels <= self.most[:, None]] = self.money[which]
        return found


PLAIN = (
    "owner", "gpu", "place", "rate", "later_rate", "deviation", "most", "begin_usd", "term_h", "full_share",
    "paid_share", "until_s", "sure_s",
)  # fmt: skip


def begins(most: Ints) -> Ints:
    """Offsets [L + 1] of the levels of parts with ``most`` [L] levels."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(most + 1)))


def taken_levels(money: Floats, most: Ints, rows: Ints) -> Floats:
    """The levels of the parts ``rows``."""
    lengths = most[rows] + 1
    begin, own = begins(most)[rows], begins(most[rows])[:-1]
    at = np.repeat(begin - own, lengths) + np.arange(int(lengths.sum()))
    return np.take(money, at, axis=1)


Columns = tuple[Any, ...]
"""The columns of a table: those named in ``PLAIN`` [L], then ``money``."""


class Lazy(Sequence[Pool]):
    """Pools that are built when they are accessed."""

    @overload
    def __getitem__(self, at: int) -> Pool: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Pool]: ...
    def __getitem__(self, at: int | slice) -> Pool | Sequence[Pool]:
        return Taken(self, np.arange(len(self))[at]) if isinstance(at, slice) else self._one(int(at))

    @abstractmethod
    def _one(self, at: int) -> Pool: ...


class Taken(Lazy):
    """A selection of other pools."""

    def __init__(self, pools: Sequence[Pool], rows: Ints) -> None:
        self._pools = pools
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def _one(self, at: int) -> Pool:
        return self._pools[int(self._rows[at])]


class Made(Lazy):
    """The pools of a service, built group by group on first access."""

    def __init__(self, make: Callable[[int], list[Pool]], group: Ints, nth: Ints) -> None:
        self._make = make
        self._group = group
        self._nth = nth
        self._made: dict[int, list[Pool]] = {}

    def __len__(self) -> int:
        return len(self._group)

    def _one(self, at: int) -> Pool:
        group = int(self._group[at])
        if group not in self._made:
            self._made[group] = self._make(group)
        return self._made[group][int(self._nth[at])]


def table_of(pools: Sequence[Pool], owner: Sequence[int]) -> PoolTable:
    """The pools as a table; ``owner`` [L] is equal for pools that differ only in commitments."""
    return PoolTable(pools, np.arange(len(pools)), *columns_of(pools, owner))


def columns_of(pools: Sequence[Pool], owner: Sequence[int]) -> Columns:
    """The columns of ``pools``."""

    def levels(name: str) -> Floats:
        return np.concatenate([np.zeros(0), *(getattr(pool, name) for pool in pools)])

    return (
        np.array(owner, dtype=np.int64),
        np.array([pool.gpu for pool in pools], dtype=np.int64),
        np.array([pool.place for pool in pools], dtype=np.int64),
        np.array([pool.rate for pool in pools], dtype=np.float64),
        np.array([pool.rate * pool.later_share for pool in pools], dtype=np.float64),
        np.array([pool.deviation for pool in pools], dtype=np.float64),
        np.array([pool.most for pool in pools], dtype=np.int64),
        np.array([pool.begin_usd for pool in pools], dtype=np.float64),
        np.array([pool.term_h for pool in pools], dtype=np.float64),
        np.array([pool.full_share for pool in pools], dtype=np.float64),
        np.array([pool.paid_share for pool in pools], dtype=np.float64),
        np.array([pool.until_s for pool in pools], dtype=np.int64),
        np.array([pool.sure_s for pool in pools], dtype=np.int64),
        np.stack([levels(name) for name in ("usd", "least_usd", "start_usd", "least_start_usd")]),
    )
