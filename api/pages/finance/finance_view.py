"""Pure functions from changes and unit costs to what their pages show."""

from __future__ import annotations

from decimal import Decimal

from api.pages.parts.charts import Charts, Step, both_widths, steps
from api.pages.parts.words import DASH, signed_usd, usd
from api.sections import Card
from broker.domain.spend.unit_costs import UnitCosts
from broker.domain.spend.variance import Changes

THOUSANDTH = Decimal("0.001")


def change_cards(changes: Changes, before: str, after: str) -> tuple[Card, ...]:
    """The difference and its three parts, which add up to it exactly."""
    change = changes.after_usd - changes.before_usd
    part = f"{100 * change / changes.before_usd:+.1f} %" if changes.before_usd else "from nothing"
    cards = (
        Card("Change", signed_usd(change), part, lead=True),
        Card(f"In {before}", usd(changes.before_usd)),
        Card(f"In {after}", usd(changes.after_usd)),
        Card("Because of price", signed_usd(changes.price_usd), "the same work at other prices"),
        Card("Because of volume", signed_usd(changes.volume_usd), _volume_words(changes)),
        Card("Because of mix", signed_usd(changes.mix_usd), "other offers in its place"),
    )
    if not changes.unused_usd:
        return cards
    return (
        *cards,
        Card("Of these not used", signed_usd(changes.unused_usd), "released before its end, or not wanted"),
    )


def _volume_words(changes: Changes) -> str:
    """What the volume is made of: workloads that began or ended, or more or less of the same."""
    begun, ended = changes.begun_usd, changes.ended_usd
    told = [f"{signed_usd(usd)} by what {word}" for usd, word in ((begun, "began"), (ended, "ended")) if usd]
    return ", ".join(told) or "more or less of the same workloads"


def bridge_charts(changes: Changes, before: str, after: str) -> Charts:
    """A bridge chart from the old sum to the new one."""
    parts = (
        Step(before, float(changes.before_usd), is_level=True),
        Step("price", float(changes.price_usd)),
        Step("volume", float(changes.volume_usd)),
        Step("mix", float(changes.mix_usd)),
        Step(after, float(changes.after_usd), is_level=True),
    )
    title = f"From {before} to {after}: price, volume and mix; the figures stand above and below"
    return both_widths(lambda width: steps(parts, title, width))


def unit_cards(units: UnitCosts) -> tuple[Card, ...]:
    """What a run, a token and a GPU-hour cost."""
    return (
        Card("A training run", usd(units.usd_per_run), f"{units.runs:,} in this time", lead=True),
        Card(
            "10¹² tokens trained",
            usd(units.usd_per_trillion_tokens_trained),
            f"{units.tokens_trained / 1e12:.3g} × 10¹² tokens"
            if units.tokens_trained
            else "no run here says how many",
        ),
        Card(
            "A million tokens served",
            _fine(units.usd_per_million_tokens_served),
            "prompts and answers" if units.tokens_served else "no service here says how many",
        ),
        Card(
            "A GPU-hour in use",
            _fine(units.usd_per_used_gpu_hour),
            f"{units.used_gpu_hours:,.0f} of them used",
        ),
        Card("A GPU-hour idle", _fine(units.usd_per_idle_gpu_hour), f"{units.idle_gpu_hours:,.0f} idle"),
    )


def _fine(amount: Decimal | None) -> str:
    """An amount, with one more digit where it is small."""
    return DASH if amount is None else f"${amount.quantize(THOUSANDTH):,}"
