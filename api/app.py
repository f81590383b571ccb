"""The web application: routes, pages, error handlers and lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from types import MappingProxyType

import structlog
from fastapi import APIRouter, Depends, FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.routing import BaseRoute

from api.bootstrap import Product
from api.export.files import MEDIA_TYPES
from api.http import errors, openapi
from api.http.conditional import kept_answers
from api.http.middleware import RequestMiddleware
from api.http.strict_requests import only_known_parameters
from api.jobs.cluster_node import ClusterNode
from api.pages import STATIC
from api.pages import routes as pages
from api.pages.help.documentation import Documentation
from api.pages.parts import link_sign_in, provider_sign_in, session
from api.pages.parts.rendering import on_http_exception, tell
from api.routes import (
    approvals,
    budgets,
    calendars,
    comparisons,
    economics,
    endpoints,
    keys,
    market,
    operations,
    plans,
    prices,
    reoptimizations,
    reservations,
    spend,
    ssh_keys,
    webhooks,
)

log = structlog.get_logger()

DISTRIBUTION = "gpu-capacity-broker"
SENT_AS_THEY_ARE = (*DEFAULT_EXCLUDED_CONTENT_TYPES, MEDIA_TYPES["xlsx"], MEDIA_TYPES["parquet"])
"""Media types that are compressed already, and streams of events, which must not wait for a compressor."""


def create_app(
    product: Product,
    *,
    scheduled: bool = True,
    reference: Mapping[str, Callable[[], str]] = MappingProxyType({}),
) -> FastAPI:
    """The application of ``product``. It migrates the database at startup and closes the product at the end.

    ``reference``: further pages of the documentation, by name: what only a higher floor knows.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        membership = ClusterNode(product)
        try:
            await _prepared(product)
            if scheduled:
                membership.start()
            yield
        finally:
            await product.background.stop()
            await membership.stop()
            await product.close()

    app = FastAPI(
        title="GPU capacity broker",
        version=version(DISTRIBUTION),
        description="Plans, reserves and accounts for GPU capacity over many providers.\n\n"
        "Money is a decimal string in USD with any number of digits after the point, without taxes. "
        "Times are ISO 8601 in UTC with `Z`. A name that ends in a unit, such as `_usd`, `_hours`, `_s` or "
        "`_gb`, has that unit; shares are between 0 and 1.",
        lifespan=life,
        openapi_url=None,  # openapi.install serves it
        docs_url=None,
        redoc_url=None,
    )
    app.state.product = product
    app.state.plan_answers = kept_answers()
    app.state.documentation = Documentation(reference)
    errors.install(app)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.router.routes.extend(_rooms())
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_middleware(GZipMiddleware, compresslevel=6, exclude_content_types=SENT_AS_THEY_ARE)
    app.add_middleware(RequestMiddleware, tell=tell, paused=product.settings.paused)
    openapi.install(app)
    return app


@cache
def _rooms() -> Sequence[BaseRoute]:
    """All routes. They are made once per process, because that takes tenths of a second; they hold no
    product.
    """
    together = APIRouter(dependencies=[Depends(only_known_parameters)])
    for room in (calendars, plans, comparisons, approvals, reservations, prices, market, reoptimizations):
        together.include_router(room.router)
    for room in (
        spend,
        economics,
        budgets,
        keys,
        ssh_keys,
        endpoints,
        webhooks,
        operations,
        session,
        provider_sign_in,
        link_sign_in,
        pages,
    ):
        together.include_router(room.router)
    together.include_router(keys.own)
    together.include_router(plans.estimates)
    together.include_router(plans.starting_points)
    return tuple(together.routes)


async def _prepared(product: Product) -> None:
    try:
        await _prepare(product)
    except Exception as error:  # the framework would report it with a stack trace
        log.error("the server cannot start", exc_info=error)
        raise


async def _prepare(product: Product) -> None:
    await product.store.migrate()
    await product.store.say_alive()
    product.readiness.schema_current = True
    if not await product.store.seal_secrets():
        log.warning("webhook secrets are stored unencrypted: set BROKER_SECRETS_KEY to encrypt them")
    secret = product.settings.admin_key
    if secret is not None:
        await product.keys.ensure_admin_key(secret.get_secret_value())
