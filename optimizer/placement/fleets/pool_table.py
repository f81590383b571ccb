"""Pools as a table: what is told of each part in columns, and money by level, one part after the other.

L pools or parts, R levels, N levels of all parts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from optimizer.placement.fleets.terms import BANDS
from optimizer.placement.problem.problem import Floats, Ints

NO_TERM = np.ones(BANDS + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """``usd`` [R]: the cheapest hour of so many bundles of replicas; ``counts`` [R, n] of ``units`` [n] for
    it; ``least_usd`` [R]: of one replica more than the bundles below, which no fleet at that level costs
    less than.

    ``start_usd`` [R] is what starting the nodes of a level costs, ``least_start_usd`` [R] a lower bound on it
    that is linear in the replicas beyond what is committed. ``rate`` is of one bundle, in requests/s.
    Nodes with minimum terms of ``term_h`` hours at least are charged ``term_share`` [B + 1] of their rate at
    least in each band of hours (``Terms``), and each level held in the first hour has cost ``begin_usd`` at
    least to start.
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
    term_share: Floats | None = None

    @property
    def most(self) -> int:
        """The highest level."""
        return len(self.usd) - 1


@dataclass(frozen=True, eq=False)
class PoolTable:
    """All parts of the pools of a service. ``row`` [L] is where each stood when all were made; ``owner`` [L]
    numbers parts of one pool.

    ``money`` [4, N] has the levels 0 to ``most`` of one part after the other: those of the pool l are
    ``begin[l]`` to ``begin[l + 1]``. Most pools have few levels and some have hundreds, so tables by level
    [L, R], which are inf above ``most``, are made for those pools only that a search keeps.
    """

    pools: Sequence[Pool]
    row: Ints
    owner: Ints
    gpu: Ints
    place: Ints
    rate: Floats
    most: Ints
    begin_usd: Floats
    term_h: Floats
    term_share: Floats
    money: Floats

    def __len__(self) -> int:
        return len(self.pools)

    @classmethod
    def nothing(cls) -> PoolTable:
        """No pool at all."""
        return table_of([], [])

    def take(self, at: Sequence[int] | Ints) -> PoolTable:
        """Some of the pools."""
        rows = np.asarray(at, dtype=np.int64)
        plain = (getattr(self, name)[rows] for name in PLAIN)
        columns: Columns = (*plain, taken_levels(self.money, self.most, rows))
        return PoolTable(Taken(self.pools, rows), self.row[rows], *columns)

    @cached_property
    def begin(self) -> Ints:
        """Where the levels of each pool begin and those of the last end [L + 1]."""
        return begins(self.most)

    @cached_property
    def usd(self) -> Floats:
        """USD [L, R] an hour of each level."""
        return self._by_level(0)

    @cached_property
    def least_usd(self) -> Floats:
        """USD [L, R] an hour that each level costs at least."""
        return self._by_level(1)

    @cached_property
    def start_usd(self) -> Floats:
        """USD [L, R] of starting each level."""
        return self._by_level(2)

    @cached_property
    def least_start_usd(self) -> Floats:
        """USD [L, R] of starting each level at least."""
        return self._by_level(3)

    def _by_level(self, which: int) -> Floats:
        levels = np.arange(int(self.most.max(initial=0)) + 1)
        found = np.full((len(self), len(levels)), np.inf)
        found[levels <= self.most[:, None]] = self.money[which]
        return found


PLAIN = ("owner", "gpu", "place", "rate", "most", "begin_usd", "term_h", "term_share")


def begins(most: Ints) -> Ints:
    """Where the levels of parts with ``most`` [L] begin, and the end [L + 1]."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(most + 1)))


def taken_levels(money: Floats, most: Ints, rows: Ints) -> Floats:
    """The levels of some parts."""
    lengths = most[rows] + 1
    begin, own = begins(most)[rows], begins(most[rows])[:-1]
    at = np.repeat(begin - own, lengths) + np.arange(int(lengths.sum()))
    return np.take(money, at, axis=1)


Columns = tuple[Any, ...]
"""What a table says of its pools: ``PLAIN`` columns [L], then ``money``."""


class Lazy(Sequence[Pool]):
    """Pools that are made when they are asked for."""

    @overload
    def __getitem__(self, at: int) -> Pool: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Pool]: ...
    def __getitem__(self, at: int | slice) -> Pool | Sequence[Pool]:
        return Taken(self, np.arange(len(self))[at]) if isinstance(at, slice) else self._one(int(at))

    @abstractmethod
    def _one(self, at: int) -> Pool: ...


class Taken(Lazy):
    """Some of other pools."""

    def __init__(self, pools: Sequence[Pool], rows: Ints) -> None:
        self._pools = pools
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def _one(self, at: int) -> Pool:
        return self._pools[int(self._rows[at])]


class Made(Lazy):
    """The pools of a service, made group by group."""

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
    """The pools as arrays; ``owner`` [L] numbers those that are one but for their commitments."""
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
        np.array([pool.most for pool in pools], dtype=np.int64),
        np.array([pool.begin_usd for pool in pools], dtype=np.float64),
        np.array([pool.term_h for pool in pools], dtype=np.float64),
        np.array([NO_TERM if p.term_share is None else p.term_share for p in pools]).reshape(-1, BANDS + 1),
        np.stack([levels(name) for name in ("usd", "least_usd", "start_usd", "least_start_usd")]),
    )
