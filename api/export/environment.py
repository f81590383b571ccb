"""Environment variables of an exported task, for every tool that starts it."""

from __future__ import annotations

from api.export.servers import held_span
from api.export.workload_facts import WorkloadFacts
from api.schemas.base.times import format_time
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import WorkloadKind

RUN_GUARD = ': "${COMMAND:?set COMMAND to the training script and its arguments}"'
MODEL_GUARD = ': "${MODEL:?set MODEL to a Hugging Face model or a folder}"'
BATCH_GUARD = ': "${INPUT:?set INPUT and OUTPUT to files of requests and answers}"'


def environment(placement: Placement, facts: WorkloadFacts) -> dict[str, str]:
    """Layout, precision, method and time of a placement, and empty variables for the user to fill in."""
    layout, (begin, end) = placement.parallelism, held_span(placement)
    found = {
        "BROKER_OFFER_ID": placement.offer_id,
        "BROKER_HOLD_FROM": format_time(begin),
        "BROKER_HOLD_UNTIL": format_time(end),
        "MODEL": facts.model,
        "PRECISION": str(placement.precision),
        "TENSOR_PARALLEL": str(layout.tp),
        "PIPELINE_PARALLEL": str(layout.pp),
    }
    if placement.live_from is not None:
        found["BROKER_LIVE_FROM"] = format_time(placement.live_from)
    if placement.kind is WorkloadKind.TRAINING:
        found |= {
            "COMMAND": "",
            "DATA_PARALLEL": str(layout.dp),
            "CONTEXT_PARALLEL": str(layout.cp),
            "EXPERT_PARALLEL": str(layout.ep),
            "MICRO_BATCH": str(layout.micro_batch),
            "RECOMPUTE": layout.recompute,
            **facts.method,
        }
    elif placement.kind is WorkloadKind.BATCH:
        found |= {"INPUT": "", "OUTPUT": ""}
        if _is_part(placement):
            assert placement.requests is not None
            assert placement.first_request is not None
            found |= {
                "FIRST_REQUEST": f"{placement.first_request:.0f}",
                "REQUESTS": f"{placement.requests:.0f}",
            }
    return found


def batch_guard(placement: Placement, node: str) -> str:
    """Asks for the files of a batch, and takes the lines of the requests that this node answers.

    ``node`` is the shell's word for the number of the node, from 0. Each node writes a file of its own.
    """
    if not _is_part(placement) and placement.nodes == 1:
        return BATCH_GUARD
    share = f"REQUESTS * {{}} / {placement.nodes}"
    return (
        f'{BATCH_GUARD}\nNODE={node}\n: "${{FIRST_REQUEST:=0}}" "${{REQUESTS:=$(grep -c "" "$INPUT")}}"\n'
        f"FIRST=$((FIRST_REQUEST + {share.format('NODE')}))\n"
        f"LAST=$((FIRST_REQUEST + {share.format('(NODE + 1)')}))\n"
        'sed -n "$((FIRST + 1)),${LAST}p" "$INPUT" > "$INPUT.$FIRST"\n'
        'INPUT="$INPUT.$FIRST" OUTPUT="$OUTPUT.$FIRST"'
    )


def _is_part(placement: Placement) -> bool:
    told = placement.requests is not None and placement.first_request is not None
    return told and placement.work_share < 1.0
