"""What ``broker doctor`` finds, as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from api.schemas.base.forms import Form
from broker.domain.market.seller_mode import SellerMode


class Finding(StrEnum):
    """How a check went. ``warning``: it works, but somebody should know."""

    FINE = "fine"
    WARNING = "warning"
    FAILED = "failed"


class Credentials(StrEnum):
    """What was found of a seller's credentials.

    ``found``: all are set, and the seller was not asked. ``accepted`` and ``rejected``: as the seller says.
    ``unanswered``: the seller did not answer. ``incomplete``: some are set and some are not.
    """

    SANDBOX = "sandbox"
    FOUND = "found"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNANSWERED = "unanswered"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the installation: its name, how it went, and what was found."""

    name: str
    finding: Finding
    says: str


@dataclass(frozen=True, slots=True)
class SellerDiagnosis:
    """One configured seller.

    ``mode``: whether it is real (null: a price list). ``problem``: what is wrong with its credentials or its
    answer (null: nothing). ``calls``: what a probe of it calls. ``orders_allowed``: whether the installation
    orders there. ``missing``: what some or all of its orders lack. ``network``: where the network that its
    machines join comes from (null: it needs none). ``verified_at``: when its last probe found no difference
    (null: never); ``polled_at``: when its offers were last read.
    """

    provider: str
    title: str
    mode: SellerMode | None
    credentials: Credentials
    problem: str | None
    calls: tuple[str, ...]
    orders_allowed: bool
    missing: tuple[str, ...]
    network: str | None
    verified_at: datetime | None
    polled_at: datetime | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The checks of the installation, and its sellers. ``exit_code`` is that of the command."""

    checks: tuple[Check, ...]
    sellers: tuple[SellerDiagnosis, ...]
    exit_code: int


Form(Check)
Form(SellerDiagnosis)
DIAGNOSIS = Form(Diagnosis)
