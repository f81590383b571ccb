"""The web application: routes, pages, errors, and the life of the product behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles

from api import errors
from api.bootstrap import Product
from api.pages import routes as pages
from api.routes import market, operations, plans, reoptimizations, reservations, spend
from api.schedule import Timetable

DISTRIBUTION = "gpu-capacity-broker"
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


def create_app(product: Product, *, scheduled: bool = True) -> FastAPI:
    """The application over ``product``, which it migrates at start and closes at the end."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await product.store.migrate()
        product.readiness.schema_current = True
        secret = product.settings.admin_key
        if secret is not None:
            await product.accounts.ensure_admin_key(secret.get_secret_value())
        timetable = Timetable(product)
        if scheduled:
            await timetable.start()
        try:
            yield
        finally:
            timetable.stop()
            await product.close()

    app = FastAPI(
        title="GPU capacity broker",
        version=version(DISTRIBUTION),
        description="Plans, reserves and accounts for GPU capacity over many providers.",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
    )
    app.state.product = product
    errors.install(app)
    for room in (plans, reservations, market, reoptimizations, spend, operations, pages):
        app.include_router(room.router)
    app.mount("/static", StaticFiles(directory=pages.STATIC), name="static")
    app.middleware("http")(_with_security_headers)
    return app


async def _with_security_headers(
    request: Request, answer: Callable[[Request], Awaitable[Response]]
) -> Response:
    response = await answer(request)
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
    if not request.url.path.startswith("/static"):
        response.headers.setdefault("Cache-Control", "private, no-store")
    return response
