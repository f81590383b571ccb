"""Placements as Slurm batch scripts: ``TZ=UTC sbatch FILE``.

Options: those of ``sbatch`` and ``srun``. A script begins with the window and ends with it. Slurm reads times
without a zone in that of the shell that submits, hence ``TZ=UTC``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from shlex import quote

from api.export.engines import command_problems, commands_of
from api.export.environment import MODEL_GUARD, RUN_GUARD, batch_guard, environment
from api.export.hosts import pool_name
from api.export.places import unsaid_rules
from api.export.servers import gpus_per_node, held_span, nodes_per_server, servers
from api.export.targets import Exported, Target, export_each, heading
from api.export.vllm import batch_command
from api.export.workload_facts import Facts, WorkloadFacts, facts_for
from broker.domain.basics.errors import FieldProblem
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import WorkloadKind

MASTER_PORT = 29500
FIRST = 'MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)'
LEFT_TO_USER = frozenset({"COMMAND", "INPUT", "OUTPUT"})


def slurm_files(plan: Plan, facts: Facts, source: str, *, reserved: bool = False) -> Exported:
    """A script a placement; what no command can start is skipped.

    ``reserved``: the scripts run in the partition of their workload's machines.
    """
    top = heading(plan, Target.SLURM, reserved=reserved)

    def files_of(name: str, placement: Placement) -> dict[str, str]:
        known = facts_for(facts, placement)
        gpu = placement.gpu.lower() if reserved else placement.gpu.split("-")[0].lower()
        options = _options(name, placement, gpu)
        if reserved:
            options["partition"] = pool_name(placement.workload)
        note = f"# The GPU's type {gpu!r} is that of your gres.conf; leave it out where that names none."
        comments = [*top.splitlines(), f"# Submit with: TZ=UTC sbatch {name}.sbatch", note]
        return {f"{name}.sbatch": _script(comments, options, placement, known)}

    def problems_of(at: str, placement: Placement) -> Iterator[FieldProblem]:
        return _problems(at, placement, facts_for(facts, placement))

    unsaid = partial(unsaid_rules, target=Target.SLURM, reserved=reserved)
    return export_each(plan, source, problems_of, files_of, unsaid)


def _problems(at: str, placement: Placement, facts: WorkloadFacts) -> Iterator[FieldProblem]:
    yield from command_problems(at, placement, facts)
    if _minutes(placement) < 1:
        yield FieldProblem(f"{at}/segments", "less than a minute", "a window of at least a minute")


def _minutes(placement: Placement) -> int:
    """Whole minutes of the window; a job must not outlive it."""
    start, end = held_span(placement)
    return int((end - start).total_seconds() // 60)


def _options(name: str, placement: Placement, gpu: str) -> dict[str, str]:
    days, minutes = divmod(_minutes(placement), 24 * 60)
    nodes, copies = _shape(placement)
    return {
        "job-name": name,
        "nodes": str(nodes),
        "ntasks-per-node": "1",
        "gres": f"gpu:{gpu}:{gpus_per_node(placement)}",
        "begin": f"{held_span(placement)[0]:%Y-%m-%dT%H:%M:%S}",
        "time": f"{days}-{minutes // 60:02}:{minutes % 60:02}:00",
        **({"array": f"1-{copies}"} if copies > 1 else {}),
    }


def _script(
    comments: Iterable[str], options: Mapping[str, str], placement: Placement, facts: WorkloadFacts
) -> str:
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{option}={value}" for option, value in options.items()),
        *comments,
        "set -euo pipefail",
        *_exports(placement, facts),
        *_commands(placement, facts, _shape(placement)[0]),
    ]
    return "\n".join(lines) + "\n"


def _shape(placement: Placement) -> tuple[int, int]:
    """Nodes of one job, and how many jobs there are: servers, and nodes of a batch, are jobs of one array."""
    if placement.kind is WorkloadKind.TRAINING:
        return placement.nodes, 1
    if placement.kind is WorkloadKind.BATCH:
        return 1, placement.nodes
    return nodes_per_server(placement), servers(placement)[1]


def _exports(placement: Placement, facts: WorkloadFacts) -> Iterator[str]:
    """The environment; what the user submits with ``--export`` or has exported wins."""
    for variable, value in environment(placement, facts).items():
        if variable not in LEFT_TO_USER and value:
            yield f"export {variable}=${{{variable}:-{quote(value)}}}"


def _commands(placement: Placement, facts: WorkloadFacts, nodes: int) -> list[str]:
    if placement.kind is WorkloadKind.BATCH:
        guard = batch_guard(placement, "$((${SLURM_ARRAY_TASK_ID:-1} - 1))")
        return [MODEL_GUARD, guard, f"srun {batch_command(placement, facts)}"]
    if placement.kind is WorkloadKind.SERVING:
        engine = commands_of(placement)
        serve = engine.serve(placement, facts)
        if nodes == 1 or engine.spans is None:
            return [MODEL_GUARD, f"srun bash -c {quote(serve)}"]
        joined = engine.spans.format(nodes="$SLURM_NNODES", rank="$SLURM_NODEID", first="$MASTER")
        return [MODEL_GUARD, f"export {FIRST}", f"srun bash -c {quote(serve + joined)}"]
    torchrun = (
        '"torchrun --nnodes $SLURM_NNODES --node-rank \\$SLURM_NODEID '
        f"--nproc-per-node {gpus_per_node(placement)} "
        f'--master-addr $MASTER --master-port {MASTER_PORT} $COMMAND"'
    )
    return [RUN_GUARD, FIRST, f"srun bash -c {torchrun}"]
