"""The table of commands. A shell that completes a command's name imports this and nothing that runs one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CommandEntry(NamedTuple):
    """Where a command lives: ``module`` has a Typer app named ``app``."""

    module: str
    summary: str
    panel: str


RUN, PLAN, HOLD, LOOK = "Run a broker, on its own machine", "Plan", "Hold and pay", "Look inside"
CONNECT = "Connect people and programs"
COMMANDS: Mapping[str, CommandEntry] = {
    "up": CommandEntry(
        "api.cli.installation.up", "Everything at once: market, plan of the examples, server.", RUN
    ),
    "serve": CommandEntry("api.cli.installation.serve", "API, pages and scheduler.", RUN),
    "sandbox": CommandEntry(
        "api.cli.installation.sandbox", "The sandbox market as a server of its own.", RUN
    ),
    "doctor": CommandEntry(
        "api.cli.installation.doctor", "Whether everything is ready: database, keys, sellers.", RUN
    ),
    "poll": CommandEntry("api.cli.market.poll", "Poll providers now.", RUN),
    "offers": CommandEntry("api.cli.market.offers", "Offers now, cheapest first.", PLAN),
    "prices": CommandEntry("api.cli.market.prices", "Prices over time, and forecasts.", LOOK),
    "quarantine": CommandEntry("api.cli.market.quarantine", "Offers with implausible prices.", LOOK),
    "init": CommandEntry("api.cli.plans.init", "Write a workloads document.", PLAN),
    "plan": CommandEntry("api.cli.plans.plan", "Plan workloads.", PLAN),
    "divide": CommandEntry("api.cli.plans.divide", "Divide services by size of request.", PLAN),
    "cost-diff": CommandEntry("api.cli.plans.cost_diff", "What a change of a document costs.", PLAN),
    "check": CommandEntry("api.cli.plans.check", "Verify a plan independently.", PLAN),
    "simulate": CommandEntry("api.cli.plans.simulate", "What may happen to a plan.", PLAN),
    "backtest": CommandEntry(
        "api.cli.plans.backtest", "Re-optimization policies over recorded prices.", PLAN
    ),
    "compare": CommandEntry("api.cli.plans.compare", "Plans side by side.", PLAN),
    "export": CommandEntry("api.cli.plans.export", "A plan for SkyPilot, dstack, vLLM, Kueue, Slurm.", PLAN),
    "plans": CommandEntry("api.cli.plans.plans", "Plans of the running server: ask for one, read one.", HOLD),
    "what-if": CommandEntry(
        "api.cli.plans.what_if", "Plan changes of a plan, and compare them with it.", HOLD
    ),
    "reserve": CommandEntry("api.cli.holding.reserve", "Reserve a plan on the running server.", HOLD),
    "reservations": CommandEntry("api.cli.holding.reservations", "What is reserved.", HOLD),
    "ssh": CommandEntry("api.cli.holding.ssh", "A shell or a command on a held machine.", HOLD),
    "hosts": CommandEntry("api.cli.holding.hosts", "Held machines for ssh, Ansible, Slurm, dstack.", HOLD),
    "endpoints": CommandEntry("api.cli.holding.endpoints", "Where services answer, for balancers.", HOLD),
    "done": CommandEntry("api.cli.holding.done", "The work is over; give the rest back.", HOLD),
    "extend": CommandEntry("api.cli.holding.extend", "Hold a reservation longer.", HOLD),
    "reoptimizations": CommandEntry(
        "api.cli.plans.reoptimizations", "Proposals as prices change; accept or reject one.", HOLD
    ),
    "release": CommandEntry("api.cli.holding.release", "Release a reservation.", HOLD),
    "spend": CommandEntry("api.cli.finance.spend", "Projected and actual spend.", HOLD),
    "budgets": CommandEntry("api.cli.finance.budgets", "Budgets, and how much of them is used.", HOLD),
    "approvals": CommandEntry(
        "api.cli.finance.approvals", "Plans that need approval: approve or reject one.", HOLD
    ),
    "focus-check": CommandEntry("api.cli.finance.focus_check", "Check a FOCUS file.", HOLD),
    "keys": CommandEntry(
        "api.cli.installation.keys", "API keys: list, make, revoke; invite a colleague.", CONNECT
    ),
    "ssh-keys": CommandEntry("api.cli.installation.ssh_keys", "Public SSH keys for orders.", CONNECT),
    "settings": CommandEntry(
        "api.cli.installation.settings", "Every setting, its value, and where that comes from.", LOOK
    ),
    "mcp": CommandEntry("api.cli.installation.mcp", "The running server as tools of an assistant.", CONNECT),
    "perf": CommandEntry("api.cli.accuracy.perf", "The performance core alone.", LOOK),
    "providers": CommandEntry("api.cli.market.providers", "Adapters and recorded payloads.", LOOK),
}
