"""A broker is killed at every boundary; after the next start the market's ledger and the tables agree.

With every run of the suite: both sides of every effect with a seller whose orders carry a tag, after every
effect with one seller of each other idempotency, and every other seller at the two points where an effect is
done and not yet stored. ``TEST_PROFILE=nightly``: every point that any story passes, with every seller.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator

import pytest

from broker.domain.holding.reservation import Idempotency
from broker.domain.market.offer import Offer
from providers.registry import SPECS
from tests.faults.broker_life import usual_offer
from tests.faults.lab import Figures, Lab
from tests.faults.profile import NIGHTLY, USUAL, matrix
from tests.faults.stories import STORIES
from tests.faults.test_crash_points import sources

pytestmark = pytest.mark.timeout(3600)

SELLERS = [name for name, spec in SPECS.items() if spec.idempotency is not None]
OF_EACH_KIND = {Idempotency.TOKEN: "oci", Idempotency.TAG: "lambda", Idempotency.NEITHER: "hotaisle"}
ALIKE = {
    "held_and_released": [
        "offer.intend",
        "reservation.order",
        "call.order",
        "reservation.held",
        "call.list",
        "reservation.seen",
        "reservation.release",
        "call.release",
        "reservation.gone",
    ],
    "planned": ["plan.intend"],
    "plan_refused": ["plan.given_back"],
    "exchanged": ["fallback_offer.intend"],
    "moved": ["move.intend"],
    "extended": ["reservation.extend"],
    "held_early": ["reservation.hold"],
    "lost_with_effect": ["reservation.unknown"],
    "refused_halfway": ["reservation.refused", "reservation.abandon"],
    "later": ["reservation.refused", "reservation.short", "reservation.claim"],
    "stray": ["lease.release_stray"],
    "not_released": ["call.release_again"],
}
"""Which story passes a point, with sellers of every kind."""

OF_ONE_KIND = {
    Idempotency.TAG: {
        "held_and_released": ["call.price", "reservation.active", "call.look", "call.second_look"],
        "lost_without_effect": ["reservation.retry"],
    },
    Idempotency.TOKEN: {
        "held_and_released": ["call.quote", "call.look"],
        "released_too_early": ["reservation.release_refused", "reservation.release_taken"],
    },
    Idempotency.NEITHER: {"lost_with_effect": ["reservation.gone", "lease.orphaned"]},
}
OF_WINDOWS = {"reservation.granted", "reservation.scheduled", "reservation.billed"}
"""Passed in the stories of sellers of windows, which the nightly profile plays."""

OF_NO_STORY = {"reservation.too_dear", "reservation.exchange_rate", "move.retry", "call.start"}
"""Passed where a seller charges more than it quoted, an exchange rate moves, nothing is bought in place of
refused nodes, or machines are started over SSH; no story has them."""

LEAST_POINTS = 30 if NIGHTLY else 2
EFFECT_NOT_STORED = ["call.order.after", "call.release.after"]


def both_sides(points: list[str]) -> list[str]:
    return [f"{point}.{side}" for point in points for side in ("before", "after")]


def after(points: list[str]) -> list[str]:
    return [f"{point}.after" for point in points]


def points_of_source() -> set[str]:
    """Points by name, and those that carry the name of an audited step."""
    found = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "crash_points.here":
                if isinstance(node.args[0], ast.Constant):
                    found.add(str(node.args[0].value).rsplit(".", 1)[0])
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("self._write", "self._answer"):
                found |= {
                    str(a.value)
                    for a in node.args
                    if isinstance(a, ast.Constant) and str(a.value).startswith("reservation.")
                }
    return found


def test_the_matrix_names_every_point() -> None:
    named = {point for points in ALIKE.values() for point in points} | OF_WINDOWS | OF_NO_STORY
    named |= {point for kind in OF_ONE_KIND.values() for points in kind.values() for point in points}
    assert points_of_source() - named == set()


def cases(lab: Lab, provider: str, offer: Offer | None) -> Iterator[tuple[str, str]]:
    """Stories and the points in them at which to die."""
    kind = SPECS[provider].idempotency
    assert kind is not None
    if NIGHTLY:
        seen: set[str] = set()
        for story in STORIES:
            for point in lab.points_of(provider, story, offer):
                if point not in seen and not point.startswith("error"):
                    seen.add(point)
                    yield story, point
    elif OF_EACH_KIND[kind] == provider:
        for story, points in (*ALIKE.items(), *OF_ONE_KIND[kind].items()):
            whole = kind is Idempotency.TAG
            yield from ((story, point) for point in (both_sides(points) if whole else after(points)))
    else:
        yield from (("held_and_released", point) for point in EFFECT_NOT_STORED)


def chosen(lab: Lab, provider: str) -> Offer | None:
    """The offer of all stories; None where windows pass with time, so that each story takes its own."""
    offer = asyncio.run(usual_offer(lab.place(provider)))
    return offer if offer.window is None else None


def killed_everywhere(lab: Lab, provider: str) -> tuple[Figures, set[str]]:
    """Every case of one seller, and the points at which somebody died."""
    offer = chosen(lab, provider)
    figures, points = Figures(), set()
    for story, point in cases(lab, provider, offer):
        case, place = f"{story} at {point}", lab.place(provider)
        if not lab.dies(place, story, offer, point):
            figures.unheard.append(f"{case}: nobody died")
        figures.add(case, lab.recovered(place, offer))
        points.add(point)
    return figures, points


@pytest.mark.parametrize("provider", matrix(SELLERS, usual=("lambda",)))
def test_no_death_loses_or_doubles_anything(lab: Lab, provider: str) -> None:
    figures, points = killed_everywhere(lab, provider)
    print(f"crash matrix: {len(points)} points × {provider} = {figures}")
    assert len(points) >= LEAST_POINTS
    assert figures.wrong() == [], "\n".join(figures.wrong())


@pytest.mark.parametrize("provider", matrix(USUAL, usual=()))
def test_no_death_loses_or_doubles_anything_on_postgresql(lab_on_postgres: Lab, provider: str) -> None:
    figures, points = killed_everywhere(lab_on_postgres, provider)
    print(f"crash matrix on PostgreSQL: {len(points)} points × {provider} = {figures}")
    assert len(points) >= LEAST_POINTS
    assert figures.wrong() == [], "\n".join(figures.wrong())
