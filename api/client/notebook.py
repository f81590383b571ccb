"""A plan in a notebook, as Markdown: what it costs, the nodes held over time, and its tables. Pure."""

from __future__ import annotations

from api.figures import day_and_time, usd
from api.plan_answer import Holding, answer_of
from api.plan_sections import NAME_WIDTH, tables_of, timeline_of, told_of
from api.plan_words import STATUS_WORDS, quality_words
from api.sections import escaped, markdown_of
from broker.domain.planning.plan import Plan

WIDTH, MOST_WORKLOADS = 100, 40


def plan_markdown(plan: Plan, holding: Holding | None = None) -> str:
    """The plan as Markdown. What a seller or a document said is text there.

    ``holding``: what is held of it.
    """
    told = [f"**{usd(plan.cost_usd)}**", STATUS_WORDS[plan.status], quality_words(plan.gap)]
    said = answer_of(plan, str, lambda at: f"{day_and_time(at)} UTC", holding=holding)
    bars = timeline_of(plan, None, WIDTH, MOST_WORKLOADS)
    return "\n\n".join(
        (
            f"{', '.join(filter(None, told))} `{plan.plan_id}`",
            *map(escaped, said),
            "\n".join(f"    {name:<{NAME_WIDTH}}  {line}" for name, line in bars),
            *map(markdown_of, tables_of(plan)),
            *(
                "\n".join([f"**{title}**", "", *(f"- {escaped(sentence)}" for sentence in sentences)])
                for title, _, sentences in told_of(plan)
            ),
        )
    )
