"""A secret of the installation starts only machines of the teams that may use it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from api.bootstrap import startup_secrets
from broker.domain.basics.errors import InputError, OrderRejected
from broker.domain.basics.machines import AccessWish
from broker.domain.holding.machine_setup import MachineSetup
from broker.domain.reconciling.lease_steps import order_of
from broker.domain.workloads.startup import SecretName, Startup
from broker.services.holding.machine_setups import MachineSetups
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE
from tests.services.conftest import House
from tests.services.test_order_gate import plan_of, under

SECRETS = startup_secrets(
    {
        "BROKER_SECRET_HF_TOKEN": "hf-4711",
        "BROKER_SECRET_SHARED": "all",
        "BROKER_KEY": "no secret of a start",
    },
    {"HF_TOKEN": ["research"]},
)
START = Startup(script="python train.py", env={"TOKEN": SecretName("HF_TOKEN"), "S": SecretName("SHARED")})


def test_a_secret_of_one_team_is_refused_to_another_by_name() -> None:
    setups = MachineSetups(secrets=SECRETS)
    assert setups.setup("research", AccessWish.SSH, START, ()).startup == START
    with pytest.raises(InputError, match="team product may not use the secret HF_TOKEN") as refused:
        setups.setup("product", AccessWish.SSH, START, ())
    assert "hf-4711" not in str(refused.value)
    unknown = Startup(script="x", env={"TOKEN": SecretName("HF_TOKE")})
    with pytest.raises(InputError, match="has no secret HF_TOKE ") as error:
        setups.setup("product", AccessWish.SSH, unknown, ())
    assert "nearest" not in str(error.value), "a name of another team's secret is not told"


async def test_an_order_whose_team_lost_the_secret_is_not_sent() -> None:
    house: House = under(None)  # type: ignore[arg-type]
    house.store_plan(plan_of("o-1"))
    (row,) = await house.reservations.reserve_plan(ALICE, "plan-1")
    row = replace(row, setup=MachineSetup(startup=START))
    assert row.team != "product"
    allowed = startup_secrets(
        {"BROKER_SECRET_HF_TOKEN": "hf-4711", "BROKER_SECRET_SHARED": "all"}, {"HF_TOKEN": [row.team]}
    )
    assert "hf-4711" in order_of(row, row.units[0], NOON, allowed).script
    with pytest.raises(OrderRejected, match="team product may not use the secret HF_TOKEN"):
        order_of(replace(row, team="product"), row.units[0], NOON, allowed)


def test_a_line_for_a_secret_that_is_not_set_is_refused() -> None:
    with pytest.raises(InputError, match=r"HF_TOKN.*not set.*nearest: HF_TOKEN"):
        startup_secrets({"BROKER_SECRET_HF_TOKEN": "x"}, {"HF_TOKN": ["research"]})
