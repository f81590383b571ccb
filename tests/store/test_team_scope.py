"""Every method of every repository keeps to the team of its unit of work, on both databases.

The methods come from the unit of work itself: a new one is walked too, or the test says what it lacks.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Select, delete, func, insert, select, text, update
from sqlalchemy.orm import aliased

from broker.domain.basics.access import EVERY_TEAM, ROLE_OVER_ALL_TEAMS, TeamScope
from broker.domain.basics.account import ApiKey, AuditEntry, IdempotencyKey, RememberedAnswer, Scope, Session
from broker.domain.basics.errors import BrokerError, NotFound, NotPermitted
from broker.domain.basics.export_jobs import ExportJob, ExportState
from broker.domain.basics.machines import Access, Machine, SshKey
from broker.domain.basics.person import PendingSignIn, Person, PersonSession
from broker.domain.basics.webhook import Delivery, DeliveryState, MoneyChange, Webhook
from broker.domain.basics.window import Window
from broker.domain.holding.launches import LaunchAttempt, LaunchOutcome
from broker.domain.holding.reservation import ReservationState, Unit, UnitState
from broker.domain.moving.reoptimization import ProposalState, Reoptimization
from broker.domain.planning.comparison import Variant
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.approvals import ApprovalState
from broker.domain.spend.budgets import Budget, BudgetAlert, BudgetPeriod
from broker.domain.spend.month_close import ClosedMonth
from broker.domain.spend.spend import ChargeBasis
from broker.domain.spend.spend_cells import Amounts, CellKey
from broker.domain.spend.unit_costs import DayWork
from broker.ports.planning import PlanState
from broker.ports.spend import FocusCosts
from broker.store import SqlUnitOfWork, Store
from broker.store.tables import LaunchRow, PlanRow, ReservationRow, Row, UnitRow
from broker.store.team_session import TeamSession, team_rows
from broker.store.writes import table_of
from tests.fakes.examples import a_plan
from tests.store.examples import HOUR, NOON, plan_record, reservation

OWNER, RIVAL = TeamScope("secret"), TeamScope("rival")
TEAM = "secret"
DAY, MONTH = date(2026, 10, 1), Window(datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC))
CELL = CellKey(TEAM, "secret-run", "training", "aws", "p5", "spot", "aws-1", "H100", "us-1")
CELLS = {(DAY, CELL): Amounts(100, 100, 3600)}
PLAN = replace(
    plan_record("secret-plan", "secret-run", team=TEAM),
    plan=a_plan(),
    needs_approval=True,
    requested_by="secret-key",
)
COMPARED = replace(
    plan_record("secret-variant", "secret-run", team=TEAM),
    variant=Variant("secret-comparison", "secret-plan", "secret", 0),
)
QUEUED = plan_record("secret-queued", team=TEAM, state=PlanState.QUEUED)
CANCELLED = plan_record("secret-cancelled", team=TEAM, state=PlanState.CANCELLED)
INTENDED = replace(plan_record("secret-old", "secret-run", team=TEAM), intended_by="secret-key")
HELD = replace(reservation("secret-rsv", team=TEAM, plan_id="secret-plan"), workload="secret-work")
LOST = replace(
    reservation("secret-lost", team=TEAM, state=ReservationState.FAILED, reference=None),
    units=(Unit(0, "secret-tag", 1, UnitState.GONE, None, NOON, gone_at=NOON),),
    released_at=NOON,
)
LOOK = Reoptimization("secret-look", TEAM, "secret-plan", "a test", NOON, ProposalState.PROPOSED)
KEY = ApiKey("secret-key", "secret", TEAM, frozenset({Scope.PLANS_READ}), "ab" * 32, NOON)
SSH_KEY = SshKey("secret-key", "secret", TEAM, "ssh-ed25519 AAAA", NOON, "secret-key", "secret-ann")
SESSION = Session("cd" * 32, "secret-key", NOON, NOON + HOUR)
PENDING = PendingSignIn("12" * 32, "nonce", "verifier", "/secret", NOON + HOUR)
PERSON = PersonSession(
    sha256="34" * 32,
    person=Person("secret-sub", "secret@example.org", TEAM, frozenset({Scope.PLANS_READ})),
    created_at=NOON,
    expires_at=NOON + 2 * HOUR,
    confirmed_at=NOON,
    due_at=NOON,
    refresh_token="secret-refresh",
)
ANSWER = RememberedAnswer(TEAM, "secret-claim", "/v1/plans", "ef" * 32, NOON)
CLAIM = IdempotencyKey(TEAM, "secret-claim", "/v1/plans")
LEFT = replace(CLAIM, key="secret-left")
HOOK = Webhook("secret-hook", TEAM, "https://secret.test", ("*",), "whsec", NOON, "secret-key")
DELIVERY = Delivery(1, "secret-hook", "secret-msg", "secret", DeliveryState.PENDING, 0, NOON)
BUDGET = Budget(TEAM, BudgetPeriod.MONTH, Decimal(5), (80,), None, "secret-key", NOON)
ALERT = BudgetAlert(BUDGET, MONTH, 80, ChargeBasis.ACTUAL, Decimal(4))
EXPORT = ExportJob("secret-export", TEAM, "secret.csv", "text/csv", NOON)
ENTRY = AuditEntry(NOON, "secret-key", "plan.request", "plan", "secret-plan", TEAM)
LAUNCH = LaunchAttempt("secret-rsv", "aws-1", "aws", "p5", "us-1", NOON, NOON, LaunchOutcome.REFUSED)
CLOSED = ClosedMonth(DAY, NOON, "secret-key", "", Decimal(1), 1)
ROWS = [{"SubAccountId": TEAM}]
WORK = DayWork(DAY, TEAM, "secret-plan", "train", WorkloadKind.TRAINING, Decimal(1), 1, 1, 1.0, is_used=True)

ARGUMENTS: Mapping[str, Any] = {
    "alert": ALERT,
    "answer": replace(ANSWER, status=200, body="{}", headers="{}"),
    "at": NOON,
    "attempts": [LAUNCH],
    "before": NOON + 2 * HOUR,
    "bill_id": "secret-plan",
    "bill_ids": ["secret-plan", "secret-lost"],
    "budget": replace(BUDGET, limit_usd=Decimal(6)),
    "claim": CLAIM,
    "comparison_id": "secret-comparison",
    "content": b"other",
    "costs": {"secret-rsv": FocusCosts(1, 1)},
    "work": [WORK],
    "cursor": None,
    "days": None,
    "deliveries": [replace(DELIVERY, event_id=2)],
    "delivery": replace(DELIVERY, state=DeliveryState.FAILED),
    "each": 5,
    "effects": ["secret-effect"],
    "entry": ENTRY,
    "export_id": "secret-export",
    "group_by": "team",
    "job": replace(EXPORT, state=ExportState.FAILED),
    "key_id": "secret-key",
    "known": (),
    "limit": 5,
    "money": MoneyChange(None, Decimal(1), Decimal(1)),
    "month": DAY,
    "months": [DAY],
    "narrowed": {},
    "new": CELLS,
    "now": NOON,
    "key_ids": ["secret-key"],
    "object_id": None,
    "old": {},
    "ordinal": 0,
    "pending": replace(PENDING, state_sha256="56" * 32),
    "period": BudgetPeriod.MONTH,
    "plan_id": "secret-plan",
    "plan_ids": ["secret-cancelled"],
    "record": PLAN,
    "records": [PLAN],
    "reoptimization": LOOK,
    "reoptimization_id": "secret-look",
    "reservation": HELD,
    "reservation_id": "secret-rsv",
    "reservation_ids": ["secret-rsv"],
    "reservations": [HELD],
    "route": "/v1/plans",
    "rows": ROWS,
    "session": replace(SESSION, sha256="01" * 32),
    "sha256": "ab" * 32,
    "since": NOON,
    "state_sha256": PENDING.state_sha256,
    "states": [ApprovalState.WAITING],
    "machines": {("secret-rsv", 0): ((Machine(Access("secret.test", "ubuntu")),), "")},
    "person": "secret-key",
    "ssh_key": replace(SSH_KEY, key_id="secret-new"),
    "stem": "broker-ab-secret",
    "team": TEAM,
    "units": [("secret-rsv", 0)],
    "until": NOON + HOUR,
    "webhook": replace(HOOK, disabled_at=NOON),
    "webhook_id": "secret-hook",
    "window": None,
}
"""What a method is called with, by the name of its parameter: the owner's things."""
OTHERWISE: Mapping[str, Mapping[str, Any]] = {
    "plans.add": {"record": replace(PLAN, plan_id="secret-new")},
    "plans.count_older_queued": {"record": replace(QUEUED, created_at=NOON + HOUR)},
    "reservations.add": {"reservation": replace(HELD, reservation_id="secret-new")},
    "reoptimizations.add": {"reoptimization": replace(LOOK, reoptimization_id="secret-new")},
    "reoptimizations.find_in": {"states": [ProposalState.PROPOSED]},
    "accounts.remember": {"answer": ANSWER},
    "accounts.forget": {"key": "secret-claim"},
    "accounts.take_over": {"claim": LEFT},
    "keys.add": {"key": replace(KEY, key_id="secret-new", sha256="ef" * 32)},
    "keys.accept": {"invitation": KEY, "sha256": "9a" * 32},
    "keys.find_session": {"sha256": SESSION.sha256},
    "keys.drop_session": {"sha256": SESSION.sha256},
    "people.add_person_session": {"session": replace(PERSON, sha256="78" * 32)},
    "people.find_person_session": {"sha256": PERSON.sha256},
    "people.claim_confirmation": {"sha256": PERSON.sha256},
    "people.confirm_person_session": {"session": replace(PERSON, confirmed_at=NOON + HOUR)},
    "people.drop_person_session": {"sha256": PERSON.sha256},
    "webhooks.add": {"webhook": replace(HOOK, webhook_id="secret-new")},
    "exports.add": {"job": replace(EXPORT, export_id="secret-new")},
    "budgets.tell": {"alert": replace(ALERT, percent=100)},
    "rollups.add_closed_rows": {"ordinal": 1},
    "rollups.add_closed_costs": {"month": date(2026, 11, 1)},
    "rollups.add_closed_work": {"month": date(2026, 11, 1)},
}
OF_EVERYBODY: Mapping[str, str] = {
    "offers": "the market is the same for every team",
    "quarantine": "the market is the same for every team",
    "prices": "the market is the same for every team",
    "networks": "machines of every team join the network that the installation made",
    "reservations.find_competing": "stock is taken by all: who reserves counts what everybody holds",
    "reservations.find_spending": "caps are over all teams: who reserves counts what everybody holds",
    "accounts.install_id": "a fact of the installation",
    "accounts.find_own_key": "the installation's own key goes with orders of every team",
    "accounts.find_own_public_key": "the installation's own key goes with orders of every team",
    "accounts.own_public_key": "the installation's own key goes with orders of every team",
    "keys.take_turns": "a lock",
    "reservations.take_turn": "a lock, because a budget may be that of all teams",
    "retention.forget_rounds": "the market is the same for every team",
    "rollups.find_generation": "how often the roll-up was written, of all teams",
    "rollups.next_generation": "how often the roll-up was written, of all teams",
    "rollups.find_closed": "a month is closed for every team",
    "rollups.add_closed": "a month is closed for every team",
}
"""Repositories and methods that no team limits, with the reason."""
REFUSED: frozenset[str] = frozenset(
    {
        "launches.add",
        "launches.find_since",
        "people.add_sign_in",
        "people.take_sign_in",
        "retention.forget_answers",
        "retention.forget_audit",
        "retention.forget_deliveries",
        "rollups.put",
        "webhooks.last_expected",
        "webhooks.put_expected",
    }
)
"""Work of the installation that no unit of work of one team can do at all."""


def repositories(uow: SqlUnitOfWork) -> Iterator[tuple[str, object]]:
    for name, found in vars(uow).items():
        if type(found).__name__.endswith("Repository"):
            yield name, found


def methods(uow: SqlUnitOfWork) -> Iterator[str]:
    for name, repository in repositories(uow):
        for method, _ in inspect.getmembers(type(repository), inspect.isfunction):
            full = f"{name}.{method}"
            if not method.startswith("_") and not {name, full} & OF_EVERYBODY.keys():
                yield full


def arguments(uow: SqlUnitOfWork, full: str) -> dict[str, Any]:
    name, method = full.split(".")
    parameters = inspect.signature(getattr(getattr(uow, name), method)).parameters
    known = {**ARGUMENTS, **OTHERWISE.get(full, {})}
    assert parameters.keys() <= known.keys(), f"say what {full} is called with: {parameters.keys()}"
    return {one: known[one] for one in parameters}


async def called(store: Store, scope: TeamScope, full: str) -> tuple[str, bool]:
    """What a method answers or raises, in words, and whether it changed what the owner has; all is undone."""
    name, method = full.split(".")
    async with store.unit_of_work(scope) as uow:
        before = await owned(uow._session)
        try:
            answer = repr(await getattr(getattr(uow, name), method)(**arguments(uow, full)))
        except (BrokerError, RuntimeError) as error:
            answer = f"{type(error).__name__}: {error}"
        return answer, await owned(uow._session) != before


async def owned(session: TeamSession) -> dict[str, list[Any]]:
    """Every row that is the owner's, also by the name of what it belongs to."""
    found: dict[str, list[Any]] = {}
    connection = await session.connection()
    for mapper in Row.registry.mappers:
        table = table_of(mapper.class_)
        rows = (await connection.execute(select(table))).all()
        found[table.name] = sorted(str(row) for row in rows if "secret" in str(row))
    return found


async def settle(store: Store) -> None:
    """One of everything for the owner."""
    async with store.unit_of_work(EVERY_TEAM) as uow:
        for record in (PLAN, COMPARED, QUEUED, CANCELLED, INTENDED):
            await uow.plans.add(record)
        for row in (HELD, LOST):
            await uow.reservations.add(row)
        await uow.reoptimizations.add(LOOK)
        await uow.accounts.remember(ANSWER)
        await uow.accounts.remember(replace(ANSWER, key=LEFT.key))
        await uow.accounts.bind(LEFT, ["secret-effect"])
        await uow.accounts.let_go(LEFT)
        await uow.accounts.add_audit(ENTRY)
        await uow.keys.add(KEY)
        await uow.keys.add_session(SESSION)
        await uow.ssh_keys.add(SSH_KEY)
        await uow.people.add_sign_in(PENDING, NOON)
        await uow.people.add_person_session(PERSON)
        await uow.webhooks.add(HOOK)
        await uow.webhooks.add_deliveries([DELIVERY])
        await uow.budgets.put(BUDGET)
        await uow.budgets.tell(ALERT)
        await uow.rollups.put("secret-plan", TEAM, {}, CELLS)
        await uow.rollups.add_closed(CLOSED)
        await uow.rollups.add_closed_rows(DAY, 0, TEAM, ROWS)
        await uow.rollups.add_closed_costs(DAY, {"secret-rsv": FocusCosts(1, 1)})
        await uow.rollups.add_closed_work(DAY, [replace(WORK, plan_id="another")])
        await uow.exports.add(EXPORT)
        await uow.exports.finish(replace(EXPORT, state=ExportState.DONE), b"secret")
        await uow.commit()


async def walked(store: Store, scope: TeamScope) -> dict[str, tuple[str, bool]]:
    async with store.unit_of_work(scope) as uow:
        names = list(methods(uow))
    return {full: await called(store, scope, full) for full in names}


async def test_no_method_of_a_repository_tells_or_changes_what_another_team_has(store: Store) -> None:
    before = await walked(store, RIVAL)
    await settle(store)
    foreign, own = await walked(store, RIVAL), await walked(store, OWNER)
    for full, (answer, changed) in foreign.items():
        assert answer == before[full][0], f"{full} tells another team that something is there"
        assert not changed, f"{full} changes what another team has"
        if full not in REFUSED:
            assert own[full] != foreign[full], f"{full} tells and changes nothing: a leak would not be seen"
    assert {full for full, (answer, _) in own.items() if "EVERY_TEAM" in answer} == REFUSED


DECISIONS: frozenset[str] = frozenset(
    {
        "accounts.add_audit",
        "accounts.bind",
        "accounts.complete",
        "accounts.forget",
        "accounts.let_go",
        "accounts.remember",
        "accounts.take_over",
        "budgets.put",
        "budgets.remove",
        "budgets.take_back",
        "budgets.tell",
        "exports.add",
        "exports.finish",
        "exports.forget",
        "plans.claim_unfinished",
        "plans.update",
        "plans.withdraw_intentions",
        "retention.forget_answers",
    }
)
"""What a unit of work for a key of all teams may change: decisions, exports, and the history of both."""


async def test_a_key_of_all_teams_sees_every_team_and_changes_nothing_but_decisions(store: Store) -> None:
    await settle(store)
    for scope in (ROLE_OVER_ALL_TEAMS, ROLE_OVER_ALL_TEAMS.narrowed_to(TEAM)):
        found, owners = await walked(store, scope), await walked(store, OWNER)
        changing = {full for full, (_, changed) in found.items() if changed}
        assert changing <= DECISIONS
        assert {"plans.update", "budgets.put", "accounts.add_audit"} <= changing
        for full, (answer, changed) in owners.items():
            if not changed and not answer.startswith(("RuntimeError", "None")):
                assert found[full][0] == answer or found[full][0].startswith("NotPermitted"), full
    assert {full for full, (_, changed) in found.items() if changed}


async def test_a_key_of_all_teams_is_refused_statements_on_what_it_may_not_write(store: Store) -> None:
    await settle(store)
    async with store.unit_of_work(ROLE_OVER_ALL_TEAMS) as uow:
        for statement in (
            update(ReservationRow).values(state="done"),
            delete(UNITS),
            text("DELETE FROM plans"),
        ):
            with pytest.raises(NotPermitted, match="reads and decides"):
                await uow._session.execute(statement)


async def test_what_is_said_to_be_of_everybody_is_there(store: Store) -> None:
    async with store.unit_of_work(EVERY_TEAM) as uow:
        known = dict(repositories(uow))
    for full in {*OF_EVERYBODY, *OTHERWISE, *REFUSED}:
        name, _, method = full.partition(".")
        assert hasattr(known[name], method) if method else name in known, full


NAMES_OF_OBJECTS = {
    "plan_id",
    "reservation_id",
    "reoptimization_id",
    "webhook_id",
    "key_id",
    "export_id",
    "object_id",
}


def test_a_table_that_names_an_object_of_a_team_says_whose_it_is() -> None:
    for mapper in Row.registry.mappers:
        row: type[Row] = mapper.class_
        names = NAMES_OF_OBJECTS & set(table_of(row).columns.keys())
        assert not names or row in team_rows() or row.owner or row.is_the_installations, (row, names)


PLANS, RESERVATIONS, UNITS = table_of(PlanRow), table_of(ReservationRow), table_of(UnitRow)


@pytest.mark.parametrize(
    "statement",
    [
        select(PLANS.c.plan_id),
        select(func.count()).select_from(PLANS),
        select(PlanRow.plan_id).where(PlanRow.plan_id.in_(select(RESERVATIONS.c.plan_id))),
        select(PlanRow.plan_id).join(RESERVATIONS, RESERVATIONS.c.plan_id == PlanRow.plan_id),
        update(PLANS).values(state="done"),
        delete(PLANS),
        insert(PLANS).values(plan_id="p", team="rival"),
        insert(PlanRow).values(plan_id="p", team="rival"),
        select(LaunchRow),
        text("SELECT plan_id FROM plans"),
        text("SELECT plan_id FROM plans").columns(PLANS.c.plan_id),
        select(PlanRow.plan_id).where(select(func.count()).select_from(RESERVATIONS).scalar_subquery() > 0),
    ],
    ids=lambda statement: " ".join(str(statement).split())[:60],
)
async def test_what_no_condition_can_be_added_to_is_refused(store: Store, statement: Select[Any]) -> None:
    async with store.unit_of_work(RIVAL) as uow:
        with pytest.raises(RuntimeError, match="cannot be kept to it"):
            await uow._session.execute(statement)


async def test_the_condition_stands_wherever_rows_of_teams_do(store: Store) -> None:
    await settle(store)
    other = aliased(PlanRow)
    asked: Collection[Select[Any]] = (
        select(PlanRow.plan_id),
        select(func.max(PlanRow.plan_id)).where(PlanRow.version >= 0),
        select(other.plan_id),
        select(func.max(select(PlanRow.plan_id).subquery().c.plan_id)),
        select(func.max(select(PlanRow.plan_id).cte().c.plan_id)),
        select(UnitRow.tag),
        select(UnitRow.tag).where(UnitRow.reservation_id == "secret-rsv"),
        select(ReservationRow.reservation_id).join(PlanRow, PlanRow.plan_id == ReservationRow.plan_id),
    )
    for scope, is_there in ((OWNER, True), (RIVAL, False), (OWNER, True), (EVERY_TEAM, True)):
        for statement in asked:
            async with store.unit_of_work(scope) as uow:
                found = [row[0] for row in await uow._session.execute(statement) if row[0] is not None]
                assert bool(found) is is_there, (scope, str(statement))


async def test_nothing_is_stored_for_another_team_or_as_a_part_of_what_it_has(store: Store) -> None:
    await settle(store)
    async with store.unit_of_work(RIVAL) as uow:
        with pytest.raises(NotFound, match="team 'secret' not found"):
            await uow.plans.add(replace(PLAN, plan_id="new"))
        with pytest.raises(NotFound, match="webhook_id 'secret-hook' not found"):
            await uow.webhooks.add_deliveries([replace(DELIVERY, event_id=7)])
