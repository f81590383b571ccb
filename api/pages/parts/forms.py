"""Forms that change something: read, proven to come from a page of this session, and acted on once.

The proof is derived from the session's key, which no other site and no script can read, so that it needs no
memory and holds behind any number of replicas. ``once`` names one showing of a form: sent twice, by a double
click or a reload, it has one effect.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP
from urllib.parse import parse_qs

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from api.http.dependencies import SESSION_COOKIE, product_of
from api.pages.parts.session import require_same_origin
from api.schemas.base.given_text import require_seen_fields
from broker.domain.basics.account import Caller, IdempotencyKey
from broker.domain.basics.errors import FieldProblem, InputError, NotPermitted
from broker.services.accounts.accounts import Answer

PROOF, ONCE = "proof", "once"
DOCUMENTS = frozenset({"before", "begin", "file", "source", "workloads"})
"""Fields that are read as documents, whose reader looks at each of their fields."""
ONCE_BYTES = 12
LONGEST_ONCE = 64
MOST_FIELDS = 200
READ_AT_ONCE_BYTES = 64 * 1024
"""A larger form is taken apart in a thread, as others want answers meanwhile."""


@dataclass(frozen=True, slots=True)
class SentForm:
    """Fields of a form by name, the last of each, and the bytes that they came as."""

    fields: Mapping[str, str]
    body: bytes

    def text(self, name: str) -> str:
        """A field without the spaces around it; empty when it was not sent."""
        return self.fields.get(name, "").strip()


def proof_of(request: Request) -> str:
    """What a form of this session must carry; empty without a session."""
    key = request.cookies.get(SESSION_COOKIE, "")
    return hmac.new(key.encode(), b"forms of the pages", hashlib.sha256).hexdigest()[:40] if key else ""


def new_once() -> str:
    """A name for one showing of a page's forms."""
    return secrets.token_urlsafe(ONCE_BYTES)


async def read_form(request: Request) -> SentForm:
    """The form of a request; NotPermitted unless a page of this session sent it."""
    require_same_origin(request)
    body = await request.body()
    content_type = request.headers.get("Content-Type", "")
    if len(body) <= READ_AT_ONCE_BYTES:
        fields = fields_of(content_type, body)
    else:
        fields = await asyncio.to_thread(fields_of, content_type, body)
    require_seen_fields({name: text for name, text in fields.items() if name not in DOCUMENTS}, "form")
    form = SentForm(fields, body)
    proof = proof_of(request)
    if not proof or not hmac.compare_digest(form.text(PROOF).encode(), proof.encode()):
        raise NotPermitted("this form is not of your present session: load its page again and repeat")
    return form


def fields_of(content_type: str, body: bytes) -> dict[str, str]:
    """The last of each field of a form; InputError for what is no form, or one of too many fields."""
    try:
        if content_type.startswith("multipart/form-data"):
            return _parts(content_type, body)
        found = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
        return {name: values[-1] for name, values in found.items()}
    except (ValueError, RecursionError) as error:
        expected = f"a form of UTF-8 text with at most {MOST_FIELDS} fields"
        raise InputError("form", (FieldProblem("", str(error), expected),)) from error


def _parts(content_type: str, body: bytes) -> dict[str, str]:
    """Fields of a form with files; of an empty file nothing."""
    header = f"Content-Type: {content_type}\r\n\r\n".encode()
    whole: Message = BytesParser(policy=HTTP).parsebytes(header + body)
    fields: dict[str, str] = {}
    for part in whole.walk():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            fields[name] = content.decode()
    return fields


async def act_once(
    request: Request,
    caller: Caller,
    form: SentForm,
    act: Callable[[Caller], Awaitable[str]],
    again: Callable[[tuple[str, ...]], str] | None = None,
) -> Response:
    """Does ``act`` once for this showing of the form, and goes to the page that it names.

    ``again``: that page from the ids of what a request stored that could not answer any more.
    """
    once = form.text(ONCE)
    if not 0 < len(once) <= LONGEST_ONCE:
        problem = FieldProblem(f"/{ONCE}", f"{len(once)} characters", f"1 to {LONGEST_ONCE}")
        raise InputError("form", (problem,))
    claim = IdempotencyKey(caller.team, f"page-{once}", f"{request.method} {request.url.path}")

    async def first() -> Answer:
        return _going_to(await act(replace(caller, claim=claim)))

    async def retold(stored: tuple[str, ...]) -> Answer:
        assert again is not None
        return _going_to(again(stored))

    accounts = product_of(request).accounts
    retell = retold if again is not None else None
    answer = await accounts.once(caller, claim.key, claim.route, form.body, first, retell)
    return RedirectResponse(json.loads(answer.headers)["Location"], answer.status)


def _going_to(path: str) -> Answer:
    return Answer(303, "", json.dumps({"Location": path}))
