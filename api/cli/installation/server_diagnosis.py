"""What ``broker doctor`` learns of a server from another machine: its sellers and its SSH keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from api.cli.errors import ExitCode
from api.cli.installation.diagnosis import ssh_keys_check
from api.client import BrokerClient
from api.schemas.base.times import find_time
from api.schemas.market.diagnosis import Check, Credentials, Diagnosis, Finding, SellerDiagnosis
from api.schemas.market.provider import MISSING
from broker.domain.market.seller_mode import SellerMode
from providers.probe import probe_calls
from providers.registry import SPECS


def diagnose_server(client: BrokerClient, url: str, team: str | None) -> Diagnosis:
    """The sellers of the server at ``url`` and the SSH keys of ``team`` (None: of any team), as it says.

    What only its machine knows, such as its database and its clock, is looked at there.
    """
    sellers = tuple(_seller(told) for told in client.list_providers())
    teams = [key.team for key in client.list_ssh_keys() if team in (None, key.team)]
    says = f"{url} answers; `broker doctor` on its machine checks its database, clock and credentials"
    checks = (Check("server", Finding.FINE, says), _polls(sellers), ssh_keys_check(teams, team))
    silent = any(one.credentials is Credentials.UNANSWERED for one in sellers)
    return Diagnosis(checks, sellers, int(ExitCode.PROVIDER if silent else ExitCode.DONE))


def with_server(here: Diagnosis, there: Diagnosis) -> Diagnosis:
    """What was found on this machine beside what the server says. A laptop need not have a database."""
    has_database = here.checks[0].finding is not Finding.WARNING
    checks = here.checks if has_database else ()
    known = {one.name for one in checks}
    added = tuple(one for one in there.checks if one.name not in known)
    return Diagnosis((*checks, *added), there.sellers, here.exit_code or there.exit_code)


def _polls(sellers: Iterable[SellerDiagnosis]) -> Check:
    """When the server last read offers."""
    last = max((one.polled_at for one in sellers if one.polled_at is not None), default=None)
    if last is None:
        return Check("polls", Finding.WARNING, "the server has read no offers yet")
    return Check("polls", Finding.FINE, f"offers were last read at {last:%Y-%m-%d %H:%M} UTC")


def _seller(told: Mapping[str, Any]) -> SellerDiagnosis:
    spec = SPECS.get(told["provider"])
    mode = None if told["mode"] is None else SellerMode(told["mode"])
    problem: str | None = told["last_error"] if told["failures_in_a_row"] else None
    return SellerDiagnosis(
        provider=told["provider"],
        title=told["title"],
        mode=mode,
        credentials=_credentials(mode, problem),
        problem=problem or told["leases_error"],
        calls=() if spec is None else probe_calls(spec),
        orders_allowed=mode is not None and not told["orders_barred"],
        missing=tuple(str(MISSING.read(one)) for one in told["missing_settings"]),
        network=None,
        verified_at=_verified_at(told["probe"]),
        polled_at=find_time(told["last_success_at"]),
    )


def _credentials(mode: SellerMode | None, problem: str | None) -> Credentials:
    if problem is not None:
        return Credentials.UNANSWERED
    return Credentials.SANDBOX if mode is SellerMode.SANDBOX else Credentials.FOUND


def _verified_at(probe: Mapping[str, Any] | None) -> datetime | None:
    return None if probe is None or probe["findings"] else find_time(probe["at"])
