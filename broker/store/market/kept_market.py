"""A cache of the market in this process, so that only changed feeds are read again.

The cache key of a feed's offers is their digest: the exclusive or of their fingerprints, which identifies
them independently of who wrote them and of commits. Cached offers were read together with these fingerprints.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from broker.domain.basics.copies import copy_with
from broker.domain.market.offer import Offer
from broker.domain.market.offer_pages import OfferCount
from broker.store.documents import from_document
from broker.store.tables import FeedRow, OfferRow
from broker.store.team_session import TeamSession
from broker.store.writes import batches

DIGEST_BITS = 128
SHARED = ("sku", "stock", "window", "launch")
"""Parts of offers of which equal ones are kept as one object, because a market is sent to planners."""


def digest_of(fingerprints: Iterable[str], before: str = "") -> str:
    """The digest of a feed that was ``before``, after offers with ``fingerprints`` were added or removed."""
    digest = int(before or "0", 16)
    for fingerprint in fingerprints:
        digest ^= int(fingerprint or "0", 16)
    return f"{digest:0{DIGEST_BITS // 4}x}"


@dataclass(frozen=True, slots=True)
class _Kept:
    """An offer, its price rank, and whether its provider states when it was observed."""

    rank: tuple[str, str]
    fingerprint: str
    is_dated: bool
    offer: Offer


@dataclass(frozen=True, slots=True)
class _Shelf:
    """One feed's offers by price rank. Offers without a time of observation have ``seen_at``."""

    digest: str
    seen_at: datetime | None
    offers: tuple[_Kept, ...]


Feeds = tuple[tuple[str, str, datetime | None], ...]
"""Provider, digest and last success of all feeds, by provider."""


class KeptMarket:
    """Offers and their counts by feed, each with the digest with which it was read."""

    def __init__(self) -> None:
        self._shelves: dict[str, _Shelf] = {}
        self._order: tuple[tuple[tuple[str, str], ...], list[int]] = ((), [])
        self._market: tuple[Feeds, tuple[str, ...], tuple[Offer, ...]] = ((), (), ())
        self._counts: dict[str, tuple[str, tuple[OfferCount, ...]]] = {}

    async def offers(self, session: TeamSession, without: Collection[str] = ()) -> tuple[Offer, ...]:
        """All current offers except of the providers ``without``, cheapest per GPU-hour first.

        The result is the same object until the next poll.
        """
        left_out = tuple(sorted(without))
        feeds = await _feeds(session)
        if self._market[:2] == (feeds, left_out):
            return self._market[2]
        wanted = tuple(feed for feed in feeds if feed[0] not in left_out)
        shelves = [await self._shelf(session, *feed) for feed in wanted]
        flat = [kept for shelf in shelves for kept in shelf.offers]
        found = tuple(flat[at].offer for at in self._order_of(wanted, shelves, flat))
        self._market = (feeds, left_out, found)
        return found

    def _order_of(self, wanted: Feeds, shelves: Sequence[_Shelf], flat: Sequence[_Kept]) -> list[int]:
        """Indices of ``flat`` in the order of price; they are cached while no feed changes."""
        key = tuple((feed[0], shelf.digest) for feed, shelf in zip(wanted, shelves, strict=True))
        if self._order[0] != key or len(self._order[1]) != len(flat):
            self._order = (key, sorted(range(len(flat)), key=lambda at: flat[at].rank))
        return self._order[1]

    async def _shelf(
        self, session: TeamSession, provider: str, digest: str, seen_at: datetime | None
    ) -> _Shelf:
        shelf = self._shelves.get(provider)
        if shelf is None or shelf.digest != digest:
            shelf = await _read_shelf(session, provider, shelf)
        if shelf.seen_at != seen_at:
            shelf = _Shelf(shelf.digest, seen_at, tuple(_seen(kept, seen_at) for kept in shelf.offers))
        self._shelves[provider] = shelf
        return shelf

    async def counts(self, session: TeamSession) -> tuple[OfferCount, ...]:
        """Number of current offers by provider, GPU, region and tier."""
        feeds = await _feeds(session)
        for provider, digest, _ in feeds:
            kept = self._counts.get(provider)
            if kept is None or kept[0] != digest:
                self._counts[provider] = await _read_counts(session, provider)
        return tuple(count for provider, _, _ in feeds for count in self._counts[provider][1])


async def _feeds(session: TeamSession) -> Feeds:
    statement = select(FeedRow.provider, FeedRow.offers_digest, FeedRow.last_success_at)
    rows = await session.execute(statement.order_by(FeedRow.provider))
    return tuple((provider, digest, seen_at) for provider, digest, seen_at in rows)


def _seen(kept: _Kept, at: datetime | None) -> _Kept:
    if kept.is_dated or at is None or kept.offer.observed_at == at:
        return kept
    return _Kept(kept.rank, kept.fingerprint, False, copy_with(kept.offer, observed_at=at))


async def _read_shelf(session: TeamSession, provider: str, before: _Shelf | None) -> _Shelf:
    """A provider's offers; only documents that ``before`` does not have are read.

    A round may be committed between two statements. The digest is computed from what was read, so that such a
    mixture matches no feed and is read again.
    """
    known = {kept.rank[1]: kept for kept in before.offers} if before is not None else {}
    marks = select(OfferRow.offer_id, OfferRow.fingerprint).where(OfferRow.provider == provider)
    found: list[_Kept] = []
    unknown: list[str] = []
    for offer_id, fingerprint in await session.execute(marks):
        kept = known.get(offer_id)
        if kept is None or not fingerprint or kept.fingerprint != fingerprint:
            unknown.append(offer_id)
        else:
            found.append(kept)
    parts: dict[Hashable, Hashable] = {}
    for some in batches(unknown):
        found.extend(await _read_offers(session, some, parts))
    found.sort(key=lambda kept: kept.rank)
    digest = digest_of(kept.fingerprint for kept in found)
    return _Shelf(digest, None, tuple(found))


async def _read_offers(
    session: TeamSession, offer_ids: Sequence[str], parts: dict[Hashable, Hashable]
) -> list[_Kept]:
    statement = (
        select(
            OfferRow.offer_id,
            OfferRow.price_rank,
            OfferRow.fingerprint,
            OfferRow.observed_at,
            OfferRow.document,
            FeedRow.last_success_at,
        )
        .join(FeedRow, FeedRow.provider == OfferRow.provider)
        .where(OfferRow.offer_id.in_(offer_ids))
    )
    rows = (await session.execute(statement)).all()
    return [
        _Kept((rank, offer_id), mark, at is not None, _shared(offer_from(document, at or seen_at), parts))
        for offer_id, rank, mark, at, document, seen_at in rows
    ]


def _shared(offer: Offer, parts: dict[Hashable, Hashable]) -> Offer:
    """``offer`` with the objects ``parts`` instead of equal ones of its own, which are added."""
    own = {name: getattr(offer, name) for name in SHARED}
    return copy_with(offer, **{name: parts.setdefault(part, part) for name, part in own.items()})


def offer_from(document: Mapping[str, object], seen_at: datetime) -> Offer:
    """The offer of a stored document, observed at ``seen_at``."""
    return from_document(Offer, {**document, "observed_at": seen_at})


async def _read_counts(session: TeamSession, provider: str) -> tuple[str, tuple[OfferCount, ...]]:
    """The digest of one feed and its counts, in one statement."""
    kind = (OfferRow.gpu, OfferRow.region, OfferRow.tier)
    statement = (
        select(FeedRow.offers_digest, *kind, func.count(OfferRow.offer_id))
        .outerjoin(OfferRow, OfferRow.provider == FeedRow.provider)
        .where(FeedRow.provider == provider)
        .group_by(FeedRow.offers_digest, *kind)
    )
    rows = (await session.execute(statement)).all()
    counts = (OfferCount(provider, gpu, region, tier, n) for _, gpu, region, tier, n in rows if n)
    return rows[0][0], tuple(counts)
