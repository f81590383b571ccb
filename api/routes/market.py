"""Current offers, and the health of feeds."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import JSONResponse

from api.http.cursors import SortKey, by_instant, by_name, make_cursor, page_of, read_cursor
from api.http.dependencies import (
    Administrator,
    AnyCaller,
    AnyLimit,
    Cursor,
    Limit,
    answer_once,
    json_answer,
    listing,
    product_of,
)
from api.http.operation_details import may_fail
from api.http.strict_requests import FormRoute
from api.offer_filters import known_names, require_offer_words
from api.routes.parameters import GpuWords, OfferId, ProviderName, ProviderWords, TierWords
from api.schemas.base.forms import PageForm, write
from api.schemas.market.gpus import GpuForm, GpuOnSale
from api.schemas.market.models import KnownModel, ModelForm
from api.schemas.market.networks import NETWORK_PLAN, NetworkPlanForm, NetworkRequest
from api.schemas.market.offer import OFFER, OfferForm
from api.schemas.market.provider import (
    PROVIDER,
    QUARANTINED,
    ConfiguredProvider,
    Feed,
    ProviderForm,
    QuarantinedForm,
)
from broker.catalogue import load_gpus, load_hugging_face_names, load_models
from broker.domain.basics.errors import Conflict, ProviderError, ProviderUnavailable, RateLimited
from broker.domain.market.offer import Offer
from broker.domain.market.offer_pages import OfferPlace, admits
from broker.domain.market.price_gate import Quarantined
from broker.provider_facts import load_provider_facts
from broker.services.accounts.accounts import Answer
from providers.registry import SPECS, sellers

router = APIRouter(prefix="/v1", tags=["market"], route_class=FormRoute)
SHOWN_REJECTED = 100


def price_per_gpu(offer: Offer) -> SortKey:
    """The sort key of offers: USD per GPU-hour, then id."""
    return offer.price_usd_per_node_hour / offer.sku.gpus_per_node, offer.offer_id


def _by_age(entry: Quarantined) -> SortKey:
    return by_instant(entry.since, entry.offer.offer_id)


@router.get("/offers", responses={200: {"model": PageForm[OfferForm]}})
async def list_offers(
    request: Request,
    caller: AnyCaller,
    gpu: GpuWords = None,
    provider: ProviderWords = None,
    region: Annotated[
        str | None,
        Query(description="Only these regions, by their sellers' names or a pattern such as `us-*`"),
    ] = None,
    tier: TierWords = None,
    country: Annotated[str | None, Query(description="Only these countries, by ISO 3166-1 codes")] = None,
    form: Annotated[str | None, Query(description="`vm`, `bare_metal` or `container`, or several")] = None,
    gpus_per_node: Annotated[
        str | None, Query(description="Only nodes of so many GPUs; several numbers by comma, such as `4,8`")
    ] = None,
    orderable: Annotated[
        bool, Query(description="Only offers that can be ordered as configured, and that are not sold out")
    ] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists the current offers, cheapest per GPU-hour first.

    Filters take several words by comma, patterns such as `us-*`, and families of GPUs such as `H100`; case is
    ignored. A word that names nothing is refused with the nearest names.
    """
    offers = product_of(request).offers
    words = {
        "gpu": gpu, "provider": provider, "region": region, "tier": tier, "country": country, "form": form,
        "gpus_per_node": gpus_per_node,
    }  # fmt: skip
    known = known_names(await offers.find_counts())
    wanted = require_offer_words(words, known, orderable=orderable)
    after = None if cursor is None else OfferPlace(*read_cursor(cursor))
    page, more = await offers.find_page(wanted.names, after, limit, wanted.traits)
    next_cursor = make_cursor(price_per_gpu(page[-1])) if more else None
    return listing([OFFER.write(offer) for offer in page], next_cursor)


@router.get("/offers/{offer_id:path}", responses={200: {"model": OfferForm}})
async def show_offer(request: Request, caller: AnyCaller, offer_id: OfferId) -> JSONResponse:
    """Shows one current offer."""
    return JSONResponse(OFFER.write(await product_of(request).offers.find_offer(offer_id)))


@router.get("/gpus", responses={200: {"model": PageForm[GpuForm]}})
async def list_gpus(
    request: Request, caller: AnyCaller, limit: AnyLimit = None, cursor: Cursor = None
) -> JSONResponse:
    """Lists the kinds of GPU that the broker knows, by name, with the number of current offers."""
    offers: Counter[str] = Counter()
    for count in await product_of(request).offers.find_counts():
        offers[count.gpu] += count.offers
    known = [GpuOnSale(spec, offers[gpu]) for gpu, spec in load_gpus().items()]
    page, next_cursor = page_of(known, lambda one: by_name(one.spec.gpu), limit, cursor)
    return listing([write(GpuForm, one) for one in page], next_cursor)


@router.get("/models", responses={200: {"model": PageForm[ModelForm]}})
async def list_models(
    request: Request,
    caller: AnyCaller,
    q: Annotated[str | None, Query(description="Part of a model's name, here or at Hugging Face")] = None,
    limit: AnyLimit = None,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists the models that workloads documents may name, by name."""
    names = load_hugging_face_names()
    known = [KnownModel(shape, names.get(model)) for model, shape in load_models().items()]
    wanted = (q or "").lower()
    found = [one for one in known if wanted in f"{one.shape.name} {one.hugging_face or ''}".lower()]
    page, next_cursor = page_of(found, lambda one: by_name(one.shape.name), limit, cursor)
    return listing([write(ModelForm, one) for one in page], next_cursor)


@router.get("/quarantine", responses={200: {"model": PageForm[QuarantinedForm]}})
async def list_quarantine(
    request: Request,
    caller: AnyCaller,
    provider: ProviderWords = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists the offers in quarantine, with the doubt, and those that were released from it."""
    offers = product_of(request).offers
    known = known_names(await offers.find_counts())
    names = require_offer_words({"provider": provider}, known).names
    entries = [entry for entry in await offers.find_quarantine() if admits(names, entry.offer)]
    page, next_cursor = page_of(entries, _by_age, limit, cursor)
    return listing([QUARANTINED.write(entry) for entry in page], next_cursor)


@router.post("/quarantine/{offer_id:path}/release", responses={200: {"model": QuarantinedForm}})
async def release_from_quarantine(request: Request, caller: Administrator, offer_id: OfferId) -> Response:
    """Releases an offer from quarantine at its price: it is on sale from the next poll until its price
    changes.
    """

    async def act() -> Answer:
        entry = await product_of(request).offers.release_from_quarantine(caller, offer_id)
        return json_answer(200, QUARANTINED.write(entry))

    return await answer_once(request, caller, act)


@router.get("/providers", responses={200: {"model": PageForm[ProviderForm]}})
async def list_providers(
    request: Request, caller: AnyCaller, limit: AnyLimit = None, cursor: Cursor = None
) -> JSONResponse:
    """Lists the configured providers: capabilities, health and freshness of the feed, rejected rows."""
    product = product_of(request)
    offers, unread = product.offers, product.reconcile.unread_lists()
    items = []
    feeds, next_cursor = page_of(
        await offers.find_feeds(), lambda feed: by_name(feed.provider), limit, cursor
    )
    for feed in feeds:
        spec = SPECS.get(feed.provider)
        missing = product.missing.get(feed.provider, ())
        latest = await offers.find_rejected(feed.provider)
        rows = latest.rejected if latest else ()
        provider = ConfiguredProvider(
            feed=Feed(feed, offers.polling_of(feed), unread.get(feed.provider)),
            title=spec.title if spec else feed.provider,
            mode=product.modes.get(feed.provider),
            capabilities=tuple(sorted(spec.capabilities)) if spec else (),
            idempotency=spec.idempotency if spec else None,
            orderable=feed.provider in sellers(product.adapters)
            and not any(one.only is None for one in missing),
            orders_barred=product.orders.rules.barred(*{feed.provider} & product.modes.keys()),
            missing_settings=tuple(missing),
            billing=load_provider_facts(feed.provider).billing if spec else None,
            probe=feed.probe,
            rejected_rows=rows[:SHOWN_REJECTED],
        )
        items.append(PROVIDER.write(provider))
    return listing(items, next_cursor)


@router.post(
    "/providers/{provider}/setup",
    responses={200: {"model": NetworkPlanForm}},
    openapi_extra=may_fail(Conflict, ProviderUnavailable, RateLimited, ProviderError),
)
async def set_up_provider(
    request: Request, caller: Administrator, provider: ProviderName, wanted: Annotated[NetworkRequest, Body()]
) -> Response:
    """Makes what a seller's machines need before they can be reached: network, subnet and firewall.

    What is there stays; repeated, it makes nothing twice. With `dry_run` it says what would be made.
    """
    networks = product_of(request).networks
    ask = networks.plan if wanted.dry_run else networks.make

    async def act() -> Answer:
        plan = await ask(caller, provider, wanted.sources, wanted.regions or ())
        return json_answer(200, NETWORK_PLAN.write(plan))

    return await answer_once(request, caller, act)
