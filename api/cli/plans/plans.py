"""``broker plans``: plans of the running server, asked for, followed and read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer

from api.cli.configuration import load_settings
from api.cli.errors import ExitCode, TimedOut
from api.cli.holding.reservation_view import print_shortfalls
from api.cli.output import Json, print_items, print_json, read_text, say, stderr, stdout
from api.cli.plans.plan_view import misses_something, show_plan
from api.cli.tables import print_section
from api.client import BrokerClient, MadePlan, ServerTimedOut, connect
from api.plan_answer import objectives_in
from api.plan_words import state_words
from api.schemas.plans.plan_record import PlanSummaryForm, UnmadePlanForm
from api.schemas.workloads.shortest import as_yaml, shortened
from api.schemas.workloads.what_if import patched
from api.sections import Cell, Section
from broker.domain.basics.errors import BrokerError, FieldProblem, InputError
from broker.domain.planning.plan import PlanStatus
from broker.domain.spend.approvals import ApprovalState
from broker.ports.planning import UNDECIDED

app = typer.Typer(add_completion=False)


@app.command()
def plans(
    plan_id: Annotated[str | None, typer.Argument(help="Show this plan; without it, all in a list.")] = None,
    new: Annotated[
        Path | None, typer.Option("--new", help="Ask for a plan of this workloads document; - for stdin.")
    ] = None,
    new_team: Annotated[
        bool, typer.Option("--new-team", help="Its team is new, though its name is like that of another.")
    ] = False,
    go_on: Annotated[
        bool, typer.Option("--continue", help="Continue the search of this plan that its limit ended.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Plan the document of this plan again, on the market now.")
    ] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds to search a new plan at most; default: the server's."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for a plan; 0: none.")] = 180.0,
    output: Annotated[Path | None, typer.Option(help="Write the plan to this file.")] = None,
    intend: Annotated[
        bool | None,
        typer.Option("--intend/--no-intend", help="Whether this draft counts in planned spend."),
    ] = None,
    workloads: Annotated[
        bool, typer.Option("--workloads", help="Print the document that asked for the plan, as YAML.")
    ] = False,
    fix: Annotated[
        str | None,
        typer.Option(metavar="[NAME:]N", help="Apply a fix of a workload that is left out, and plan again."),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End this plan while it waits or is being made.")
    ] = False,
    confidence_prices: Annotated[
        bool, typer.Option("--confidence-prices", help="Tell what this plan's document costs at others too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Plans of the running server: asks for one, shows one, or lists them, newest first.

    Only a plan of the server can be reserved. Ctrl-C while a new plan is awaited cancels it. Exit codes:
    3 the key may not, 4 no such plan, 5 it is made already, 6 a workload cannot be placed, 9 planning goes
    on, 130 cancelled by Ctrl-C.

    Example: BROKER_KEY=… broker plans --new fixtures/examples/quickstart.yaml

    Example: broker plans PLAN_ID --fix 2

    Example: broker plans PLAN_ID --continue --time-limit 60

    Example: broker plans PLAN_ID --again
    """
    is_new = new is not None or fix is not None or go_on or again
    shows = workloads or (confidence_prices and not is_new)
    _require_one_question(plan_id, new, fix, intend, cancel=cancel, workloads=shows, go_on=go_on, again=again)
    if time_limit is not None and not is_new:
        expected = "--new, --fix, --again or --continue beside it"
        raise InputError("command line", (FieldProblem("--time-limit", "no new plan", expected),))
    with connect(load_settings()) as client:
        if go_on and plan_id is not None:
            plan_id = client.continue_plan(plan_id, f"cli-{uuid4()}", time_limit_s=time_limit).plan_id
            say(f"planning {plan_id}")
        elif is_new:
            plan_id = _begun(client, plan_id, new, fix, timeout, time_limit, new_team=new_team)
        if plan_id is None:
            listed = list(client.list_plans())
            if as_json:
                print_items(one.model_dump(mode="json") for one in listed)
            else:
                print_section(plans_section(listed))
                print_shortfalls(stdout(), client.list_shortfalls())
            return
        if workloads:
            _print_workloads(client.find_plan(plan_id), as_json=as_json)
            return
        if cancel:
            client.cancel_plan(plan_id)
            _tell_cancelled(client.find_plan(plan_id), as_json=as_json)
            return
        made = made_unless_stopped if is_new else _made
        found = made(client, plan_id, timeout)
        if confidence_prices:
            client.find_confidence_prices(plan_id)  # the server keeps them with the plan
            found = _made(client, plan_id, timeout)
        if intend is not None:
            client.set_intended(plan_id, intended=intend)
            found = _made(client, plan_id, timeout)
        short = [] if as_json else client.list_shortfalls(plan_id)
    print_shortfalls(stderr(), short)
    show_made(found, output, as_json=as_json)


def _require_one_question(
    plan_id: str | None,
    new: Path | None,
    fix: str | None,
    intend: bool | None,
    *,
    cancel: bool,
    workloads: bool,
    go_on: bool,
    again: bool,
) -> None:
    """Raises InputError for options that contradict each other, or lack the plan that they are about."""
    if plan_id is not None and new is not None:
        raise InputError("command line", (FieldProblem("--new", "a plan's id beside it", "one of both"),))
    if cancel and intend is not None:
        raise InputError("command line", (FieldProblem("--cancel", "--intend beside it", "one of both"),))
    ways = {"--continue": go_on, "--fix": fix is not None, "--again": again}
    chosen = [option for option, is_asked in ways.items() if is_asked]
    if len(chosen) > 1:
        problem = FieldProblem(chosen[0], f"{chosen[1]} beside it", "one of both")
        raise InputError("command line", (problem,))
    about_one = {
        "to continue": go_on,
        "to cancel": cancel,
        "to change": fix is not None,
        "to plan again": again,
        "to show": workloads,
    }
    for what, is_asked in about_one.items():
        if is_asked and plan_id is None:
            expected = f"the id of the plan {what}"
            raise InputError("command line", (FieldProblem("PLAN_ID", "nothing", expected),))
    if intend is not None and plan_id is None and new is None:
        raise InputError("command line", (FieldProblem("PLAN_ID", "nothing", "a plan's id"),))


def _begun(
    client: BrokerClient,
    plan_id: str | None,
    new: Path | None,
    fix: str | None,
    timeout_s: float,
    time_limit_s: float | None,
    *,
    new_team: bool,
) -> str:
    """Asks for the plan of a file, or of a plan's document, as it is or with a fix; its id."""
    if plan_id is not None and fix is not None:
        text = fixed_document(_made(client, plan_id, timeout_s), fix)
    elif plan_id is not None:
        text = json.dumps(_document_of(client.find_plan(plan_id)))
    else:
        assert new is not None
        text = read_text(new)
    return ask_for_plan(client, text, time_limit_s, new_team=new_team)


def ask_for_plan(
    client: BrokerClient, text: str, time_limit_s: float | None, *, new_team: bool = False
) -> str:
    """Asks for the plan of a workloads document; its id."""
    begun = client.ask_for_plan(text, f"cli-{uuid4()}", time_limit_s=time_limit_s, new_team=new_team).plan_id
    say(f"planning {begun}")
    return begun


def _document_of(found: MadePlan | UnmadePlanForm) -> Any:
    return found.document["workloads"] if isinstance(found, MadePlan) else found.workloads


def _print_workloads(found: MadePlan | UnmadePlanForm, *, as_json: bool) -> None:
    document = _document_of(found)
    if as_json:
        print_json(document)
    else:
        sys.stdout.write(as_yaml(shortened(document, datetime.now(UTC))))


def fixed_document(found: MadePlan, word: str) -> str:
    """The document of a plan with one of its fixes applied: ``2``, or ``NAME:2`` where several are left out.

    Raises InputError for a fix that there is not.
    """
    name, _, number = word.rpartition(":")
    left = [row for row in found.plan.unplaced if not name or row.workload == name]
    if not found.plan.unplaced or not left or (len(left) > 1 and not name):
        names = ", ".join(row.workload for row in found.plan.unplaced) or "nothing"
        expected = f"NAME:N, where NAME is left out ({names})"
        raise InputError("command line", (FieldProblem("--fix", repr(word), expected),))
    fixes = left[0].fixes
    if not number.isdecimal() or not 1 <= int(number) <= len(fixes):
        said = "; ".join(f"{at}: {one.says}" for at, one in enumerate(fixes, 1)) or "no change that was tried"
        expected = f"the number of a fix of {left[0].workload}: {said}"
        raise InputError("command line", (FieldProblem("--fix", repr(word), expected),))
    return json.dumps(patched(found.document["workloads"], fixes[int(number) - 1].patch))


def show_made(found: MadePlan, output: Path | None, *, as_json: bool) -> None:
    """Prints a plan and writes it to a file if asked to. Exit code 6 when a workload cannot be placed."""
    plan = found.plan
    objectives = objectives_in(found.document.get("workloads") or {})
    holding = found.stands.holding
    show_plan(plan, found.document, output, as_json=as_json, objectives=objectives, holding=holding)
    if found.stands.approval is ApprovalState.WAITING:
        say("finance has to approve it before it can be reserved (broker approvals)")
    if found.stands.stale_because:
        why = "; ".join(found.stands.stale_because)
        say(f"it cannot be reserved as planned: {why}. Plan again: broker plans {plan.plan_id} --again")
    if misses_something(plan):
        raise typer.Exit(ExitCode.UNPLACED)


def _tell_cancelled(found: MadePlan | UnmadePlanForm, *, as_json: bool) -> None:
    if as_json:
        print_json(found.document if isinstance(found, MadePlan) else found.model_dump(mode="json"))
    else:
        of, stands = (found.plan, found.stands) if isinstance(found, MadePlan) else (found, found)
        stdout().print(f"plan {of.plan_id} is {stands.state}", soft_wrap=True)


def made_unless_stopped(client: BrokerClient, plan_id: str, timeout_s: float) -> MadePlan:
    """Waits for the plan. Ctrl-C cancels it on the server."""
    try:
        return _made(client, plan_id, timeout_s)
    except KeyboardInterrupt:
        try:
            client.cancel_plan(plan_id)
            told = f"plan {plan_id} is cancelled"
        except BrokerError as error:
            told = f"plan {plan_id} could not be cancelled: {error}"
        say(told)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _made(client: BrokerClient, plan_id: str, timeout_s: float) -> MadePlan:
    """Waits for the plan. Raises TimedOut, or PlanFailed."""
    try:
        return client.wait_for_plan(plan_id, timeout_s)
    except ServerTimedOut as error:
        raise TimedOut(f"{error}; look again with `broker plans {plan_id}`") from error


def plans_section(found: Sequence[PlanSummaryForm]) -> Section:
    """One row for each plan, newest first."""
    rows = [(Cell(one.plan_id, (one.team,)), _what(one), one.cost_usd, one.created_at) for one in found]
    return Section(("=plan, team", "workloads, state", ">cost", "=made (UTC)"), rows, empty="no plans")


def _what(one: PlanSummaryForm) -> Cell:
    """The workloads of a plan, where it is, and for a variant what it changes."""
    variant = [] if one.change is None else [f"what if: {one.change}"]
    return Cell(", ".join(one.workload_names), (_standing_words(one), *variant))


def _standing_words(one: PlanSummaryForm) -> str:
    """Where a plan is, then notes on it."""
    if one.standing is None:
        return str(one.state)
    words = [state_words(str(one.state), str(one.standing))]
    if one.intended and one.standing in UNDECIDED:
        words.append("counts in planned spend")
    if one.approval is ApprovalState.APPROVED:
        words.append("approved")
    if one.stale_because and one.standing in UNDECIDED:
        words.append("offers changed")
    if one.holding is not None:
        words.append(one.holding.text)
    if one.status is PlanStatus.INFEASIBLE:
        words.append("not everything placed")
    return ", ".join(words)
