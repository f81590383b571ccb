"""From a provider's bytes to rows, and from rows to a batch of offers; nothing is dropped silently.

``PayloadUnreadable`` concerns a payload as a whole. A row that cannot be sold raises ``RowRejected`` (or
fails its model) and is listed with its reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Never, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from broker.catalogue import load_exchange_rates, load_gpus
from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.exchange import DayRate, Exchange, rate_on
from broker.domain.market.offer import Offer, OfferBatch, RejectedRow, Tier
from broker.domain.market.sku import SoldAmount
from broker.provider_facts import ProviderFacts
from providers.gpu_words import UnknownCard, is_memory_of, memory_of_slice, read_card

Model = TypeVar("Model", bound=BaseModel)

MOST_USD_PER_HOUR = Decimal(100_000)
_FIVE_DIGITS = Decimal("0.00001")
LEAST_USD_PER_HOUR = Decimal("0.000001")
GB_PER_GIB = 2**30 / 1e9
_PICO = Decimal("1e-12")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")


def _instant(value: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if found is None:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


Instant = Annotated[datetime | None, BeforeValidator(_instant)]
"""A time that is not essential to its answer: None if it is unreadable. In UTC."""
Name = Annotated[str, Field(min_length=1, max_length=200)]
GpuCount = Annotated[int, Field(ge=0, le=1024)]
Amount = Annotated[float, Field(ge=0, le=1e9)]


class PayloadModel(BaseModel):
    """Base of the private models: only the fields that are read, frozen, the rest ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class RowRejected(Exception):
    """This row cannot become an offer; the text says why."""


def _no_constant(text: str) -> Never:
    raise ValueError(f"{text} is not JSON")


def _exact(text: str) -> Decimal:
    number = Decimal(text)
    if len(text) > 64 or abs(number.adjusted()) > 64:
        raise ValueError("a number is too large")
    return number


def _written(value: Any) -> Any:
    """``value`` with unpaired surrogates replaced, because such text can be neither stored nor shown."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_written(each) for each in value]
    return {_written(k): _written(v) for k, v in value.items()} if isinstance(value, dict) else value


def decode_json(provider: str, raw: bytes) -> Any:
    """JSON with exact decimals; PayloadUnreadable for anything else, NaN included."""
    try:
        value = json.loads(raw, parse_float=_exact, parse_constant=_no_constant)
        return _written(value) if _SURROGATE.search(raw) or b"\0" in raw[:4] else value
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise PayloadUnreadable(provider, f"not JSON: {_short(str(error))}") from None


def decode_model(provider: str, raw: bytes, model: type[Model]) -> Model:
    """JSON as ``model``; PayloadUnreadable names the first wrong field."""
    return as_payload(provider, decode_json(provider, raw), model)


def as_payload(provider: str, value: object, model: type[Model]) -> Model:
    """A decoded value as ``model``; PayloadUnreadable names the first wrong field."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise PayloadUnreadable(provider, first_problem(error)) from None


def as_list(provider: str, value: object, name: str) -> list[Any]:
    """A decoded value that must be a list."""
    if not isinstance(value, list):
        raise PayloadUnreadable(provider, f"{name} is not a list")
    return value


def as_dict(provider: str, value: object, name: str) -> dict[str, Any]:
    """A decoded value that must be an object."""
    if not isinstance(value, dict):
        raise PayloadUnreadable(provider, f"{name} is not an object")
    return value


def first_problem(error: ValidationError) -> str:
    """``field: what is wrong`` of the first failure, without the input itself."""
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "row"
    return _short(f"{place}: {first['msg']}")


def _short(text: str) -> str:
    return text[:200].encode("utf-8", "replace").decode()


def collect(
    rows: Iterable[tuple[str, Any]], build: Callable[[Any], Iterable[Offer | RejectedRow]]
) -> OfferBatch:
    """Builds every (name, row).

    A row that fails, has an unusable id, or repeats the id of another row is rejected by name.
    """
    offers: dict[str, Offer] = {}
    rejected: list[RejectedRow] = []
    for name, row in rows:
        try:
            built = tuple(build(row))
        except RowRejected as error:
            rejected.append(RejectedRow(_short(name), _short(str(error))))
            continue
        except ValidationError as error:
            rejected.append(RejectedRow(_short(name), first_problem(error)))
            continue
        except OverflowError:
            rejected.append(RejectedRow(_short(name), "a time or a number is out of range"))
            continue
        for item in built:
            if isinstance(item, RejectedRow):
                rejected.append(item)
            elif " " in item.offer_id or not item.offer_id.isprintable():
                rejected.append(RejectedRow(_short(name), "the name has spaces or control characters"))
            elif item.offer_id in offers:
                offers[item.offer_id], other = dearer(offers[item.offer_id], item)
                rejected.append(RejectedRow(_short(name), second_row(offers[item.offer_id], other)))
            else:
                offers[item.offer_id] = item
    return OfferBatch(tuple(offers.values()), tuple(rejected))


def dearer(one: Offer, other: Offer) -> tuple[Offer, Offer]:
    """Orders two rows with the same offer id: first the one that is kept, then the other.

    Nothing tells which of two prices is charged. So the more expensive one is kept and, at equal prices,
    the one with less stock.
    """
    kept, left = sorted((one, other), key=_rank, reverse=True)
    return kept, left


def _rank(offer: Offer) -> tuple[Any, ...]:
    nodes = offer.stock.nodes
    known = (nodes is not None, -(nodes or 0))
    return (
        offer.price_usd_per_node_hour,
        offer.upfront_usd or 0,
        known,
        repr(sorted(offer.reference.items())),
    )


def second_row(kept: Offer, other: Offer) -> str:
    """The reason for rejecting ``other`` in favour of ``kept``, which has the same id."""
    price, second = kept.price_usd_per_node_hour, other.price_usd_per_node_hour
    if price == second:
        return f"second row of offer {kept.offer_id}"
    return f"a second price of offer {kept.offer_id}, {second}; kept {price}"


def join_batches(batches: Iterable[OfferBatch]) -> OfferBatch:
    """Several batches as one; of two offers with one id, the cheaper one is rejected."""
    taken = tuple(batches)
    every = collect((((o.offer_id, o)) for batch in taken for o in batch.offers), lambda offer: (offer,))
    return OfferBatch(every.offers, (*(r for batch in taken for r in batch.rejected), *every.rejected))


def require_price(value: Decimal | None, name: str = "price") -> Decimal:
    """Raises RowRejected unless the price is present, above zero, finite and plausible."""
    if value is None:
        raise RowRejected(f"{name} is null")
    if not value.is_finite() or value < 0 or value > MOST_USD_PER_HOUR:
        raise RowRejected(f"{name} is not a usable amount")
    if value < LEAST_USD_PER_HOUR:
        raise RowRejected(f"{name} is zero")
    return value


def without_noise(price: Decimal) -> Decimal:
    """A price with floating-point noise (1.6567999999999998), rounded to five digits."""
    exponent = price.as_tuple().exponent
    return price.quantize(_FIVE_DIGITS) if isinstance(exponent, int) and exponent < -5 else price


def require_sold(facts: ProviderFacts, sku: str, tier: Tier) -> None:
    """Raises RowRejected for a tier of a type that is priced but not sold (``search.not_sold`` in its
    configuration)."""
    for kind in facts.search.get("not_sold", ()):
        if kind["tier"] == tier and sku in kind["types"]:
            raise RowRejected(kind["says"])


def usd_of(
    amount: Decimal, currency: str, day: date, *, is_billed: bool = False
) -> tuple[Decimal, Exchange | None]:
    """Dollars of ``amount`` per node-hour at the exchange rate of ``day``, and how it counts (None: dollars).

    ``is_billed``: the provider's invoice is in this currency. RowRejected when the table lacks the currency.
    """
    code = currency.upper()
    if code == "USD":
        return amount, None
    rate = rate_on(load_exchange_rates(), code, day)
    if rate is None:
        raise RowRejected(f"no exchange rate for {_short(currency)!r}")
    rates = (DayRate(day, rate.on, rate.usd_per_unit),)
    return amount * rate.usd_per_unit, Exchange(rates, amount if is_billed else None)


def source_with_rate(source: str, currency: str, exchange: Exchange | None) -> str:
    """``source`` and the exchange rate of a converted price, as text."""
    if exchange is None:
        return source
    rate = exchange.rates[0]
    return f"{source}; 1 {currency.upper()} = {rate.usd_per_unit} USD of {rate.on}"


def require_gpus(count: int | None) -> int:
    """Raises RowRejected for a node without a GPU."""
    if not count:
        raise RowRejected("no GPU")
    return count


def canonical_gpu(facts: ProviderFacts, word: str, memory_gb: float | None = None) -> str:
    """The canonical name of a provider's GPU word, checked against the stated memory.

    A word that is sold in several sizes stands in ``silicon`` as ``<word> <GB>GB``; other words are read by
    ``read_card``. RowRejected when the word names no card, or several, or when the memory is that of
    another card.
    """
    known = [facts.silicon[word]] if word in facts.silicon else _by_size(facts, word)
    if not known:
        return named_card(word, memory_gb)
    if memory_gb is None:
        return known[0]
    for gpu in known:
        if is_memory_of(memory_gb, nominal_memory_gb(gpu)):
            return gpu
    sliced = memory_of_slice(memory_gb, map(nominal_memory_gb, known))
    raise RowRejected(sliced or f"unknown GPU {_short(word)!r} with {memory_gb:.4g} GB of memory")


def named_card(word: str, memory_gb: float | None = None) -> str:
    """The card that ``word`` alone names; RowRejected says what is ambiguous."""
    try:
        return read_card(word, memory_gb)
    except UnknownCard as error:
        left_open = f": {error}" if str(error) else ""
        raise RowRejected(f"unknown GPU {_short(word)!r}{left_open}") from None


def _by_size(facts: ProviderFacts, word: str) -> list[str]:
    return [gpu for key, gpu in facts.silicon.items() if key.startswith(f"{word} ") and key.endswith("GB")]


def gb_of_gib(gib: float | None) -> float | None:
    """GB (10⁹ bytes) of GiB (2³⁰ bytes), to one decimal."""
    return None if gib is None else round(gib * GB_PER_GIB, 1)


def sold_amount(
    default: float,
    usd_per_unit_hour: Decimal,
    *,
    least: float | None = None,
    most: float | None = None,
    unit_gb: float = 1.0,
) -> SoldAmount:
    """Disk or memory that is sold by the unit.

    Without ``least`` nothing below the default is ordered; without ``most`` the seller states no limit.
    """
    gb = Decimal(str(unit_gb))
    return SoldAmount(
        default_gb=round(default * unit_gb, 6),
        min_gb=round(min(default, default if least is None else least) * unit_gb, 6),
        max_gb=None if most is None else round(max(default, most) * unit_gb, 6),
        usd_per_gb_hour=(usd_per_unit_hour / gb).quantize(_PICO),
        step_gb=unit_gb,
    )


def with_disk(offer: Offer, disk: SoldAmount) -> Offer:
    """The offer with a disk of choice that is charged beside its price, which then contains the default."""
    return replace(offer.dearer(disk.usd_per_gb_hour * Decimal(str(disk.default_gb))), disk=disk)


def address_usd_per_hour(offer: Offer, facts: ProviderFacts) -> Decimal:
    """What the public address of a machine of ``offer`` costs beside it; zero where its price contains it."""
    address = facts.address
    if address is None:
        return Decimal(0)
    spot = address.spot_per_hour if offer.tier is Tier.SPOT else None
    amount = address.per_hour if spot is None else spot
    return usd_of(amount, address.currency, offer.observed_at.date())[0]


def with_address(offer: Offer, facts: ProviderFacts) -> Offer:
    """The offer with the public address of its machine, which is charged beside its price."""
    return offer.dearer(address_usd_per_hour(offer, facts))


def ordered_units(sold: SoldAmount | None, gb: float | None) -> int | None:
    """How many of the seller's units an order of ``gb`` is; None where the buyer does not choose."""
    return None if sold is None or gb is None else round(gb / sold.step_gb)


def slug(text: str) -> str:
    """A name as part of an offer id: no spaces, no slashes."""
    return "-".join(text.replace("/", " ").split())


def nominal_memory_gb(gpu: str) -> float:
    """Memory of one card as ``config/gpus.csv`` names it."""
    return load_gpus()[gpu].memory_gb
