"""Workloads from what a team already has: a model's ``config.json``, a task, a manifest, a command line.

What is known is filled in. ``missing`` are needed fields that the source does not tell, which have examples
in their place; ``left_out`` names everything of the source that is not used, and why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from api.schemas.base.document import describe, read_document
from api.schemas.imports.draft import Draft
from api.schemas.imports.gpu_kinds import gpus_of_directives
from api.schemas.imports.jobs import Job, complete, tell_gpu_kinds
from api.schemas.imports.manifests import is_manifest, jobs_of_manifests
from api.schemas.imports.recipes import recipe_options, recipe_title
from api.schemas.imports.server_lines import draft_of_server, find_server
from api.schemas.imports.shell import Command, Shell
from api.schemas.imports.tasks import RUN_TYPES, is_dstack, is_task, job_of_dstack, job_of_task
from api.schemas.imports.training_lines import draft_of_launcher, draft_of_recipe, find_launcher
from api.schemas.workloads.form_fields import NEW_WORKLOADS, WORKLOAD_FIELDS, value_at
from broker.catalogue import known_model, load_models, named_format
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.left_out import LeftOut
from broker.domain.planning.workload import ServingEngine, WorkloadKind
from broker.domain.workloads.model_shape import ModelShape
from broker.models.config import model_from_hf_config, quantization_of
from broker.models.weight_formats import format_of_config

COMMANDS = (
    "vllm serve, python -m vllm.entrypoints.openai.api_server, docker run vllm/vllm-openai, "
    "python -m sglang.launch_server, trtllm-serve, torchrun, accelerate launch, deepspeed, axolotl train, "
    "tune run or trl sft"
)
EXPECTED = (
    "a Hugging Face config.json, a SkyPilot task, a dstack service or task, a Kubernetes manifest, a "
    f"configuration of axolotl, torchtune, TRL or LLaMA-Factory, or a command line with {COMMANDS}"
)
ENVIRONMENT = "the environment of the program is not planned"
SAME_SIZE = 0.01
SHOWN = 60
MOST_CHARACTERS = 200_000
POINTERS = {"skypilot": "/run", "dstack": "/commands", "kubernetes": "/spec"}
_SEPARATOR = re.compile(r"^---(?:[ \t].*)?$", re.MULTILINE)
_OF_TOOL = re.compile(
    r"^(apiVersion|resources|num_nodes|base_model|model_name_or_path|type):\s", re.MULTILINE
)
_OPTION = re.compile(r"-(?!(u|m)$)-?[A-Za-z]")


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """A workload that a source describes; ``found`` says what the source is."""

    found: str
    workload: dict[str, Any]
    missing: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked of a source: its name in messages, the kind of workload that it must be (None: any), and
    the name under which a ``config.json`` of a model without a name can be found. ``gpus``: those of the job
    that runs its commands.
    """

    source: str
    kind: WorkloadKind | None = None
    model_file: str | None = None
    gpus: int | None = None


def read_starting_point(
    text: str, source: str, model_file: str | None = None, kind: WorkloadKind | None = None
) -> StartingPoint:
    """The workload that ``text`` describes.

    Raises InputError for text that is too long or none of the known kinds, for a workload that is not of
    ``kind``, and for what cannot be planned as it is written.
    """
    if len(text) > MOST_CHARACTERS:
        problem = FieldProblem("", f"{len(text):,} characters", f"at most {MOST_CHARACTERS:,}")
        raise InputError(source, (problem,))
    asked = Asked(source, kind, model_file)
    documents = _documents(text, source)
    data = documents[0] if documents else None
    if documents and all(is_manifest(one) for one in documents):
        return _of_manifests(documents, asked)
    if isinstance(data, dict):
        return _of_data(data, asked)
    shell = Shell(text)
    found = _of_shell(shell, asked)
    if found is not None:
        title, draft = found
        if shell.directives:
            tell_gpu_kinds(draft, list(dict.fromkeys(gpus_of_directives(text))), "slurm")
            draft.leave("#SBATCH", "directives are read for kinds of GPU alone; state gpus for their number")
        _leave_environment(draft, shell)
        return _finished(title, draft)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = next((line for line in lines if not line.startswith("#")), lines[0] if lines else "nothing")
    raise InputError(source, (FieldProblem("", repr(shown[:SHOWN]), EXPECTED),))


def _documents(text: str, source: str) -> list[dict[str, Any]]:
    """The objects of a YAML or JSON text; none of other text. Raises InputError for broken files of tools."""
    found: list[dict[str, Any]] = []
    for part in _SEPARATOR.split(text):
        try:
            data = read_document(part, source).data
        except InputError:
            if _OF_TOOL.search(text):
                raise
            return []
        if isinstance(data, dict):
            found.append(data)
        elif data is not None:
            return []
    if len(found) > 1 and not all(is_manifest(one) for one in found):
        raise InputError(source, (FieldProblem("", "a second document", "one document"),))
    return found


def _of_data(data: dict[str, Any], asked: Asked) -> StartingPoint:
    """The workload of a file of one object that is no manifest."""
    title = recipe_title(data)
    if title is not None:
        _require_kind(asked, title, (WorkloadKind.TRAINING,))
        return _finished(title, draft_of_recipe(recipe_options(data), asked.source))
    if is_dstack(data):
        if data["type"] not in RUN_TYPES:
            problem = FieldProblem("/type", str(data["type"]), f"a dstack {' or '.join(sorted(RUN_TYPES))}")
            raise InputError(asked.source, (problem,))
        job = job_of_dstack(data)
        return _finished(job.title, _of_job(job, asked))
    if "architectures" in data or "model_type" in data:
        return _finished("a Hugging Face config.json", _of_config(data, asked))
    if is_task(data):
        return _finished("a SkyPilot task", _of_job(job_of_task(data), asked))
    raise InputError(asked.source, (FieldProblem("", describe(data), EXPECTED),))


def _of_manifests(objects: Sequence[Mapping[str, Any]], asked: Asked) -> StartingPoint:
    """The workload of the first object with a command that is read; the others are left out."""
    jobs, beside = jobs_of_manifests(objects)
    read = next((job for job in jobs if any(_known(Shell(job.commands, job.variables)))), None)
    read = read or next(iter(jobs), None)
    if read is None:
        expected = "an object with pods that serve a model or train one"
        raise InputError(asked.source, (FieldProblem("/kind", ", ".join(beside), expected),))
    read.beside = [*beside, *(f"{job.title} {job.name or ''}".rstrip() for job in jobs if job is not read)]
    return _finished(read.title, _of_job(read, asked))


def _known(shell: Shell) -> Iterator[Command]:
    """The commands that start a server or a training run."""
    return (one for one in shell.commands() if find_server(one.words) or find_launcher(one.words))


def _finished(found: str, draft: Draft) -> StartingPoint:
    """The draft over the example of its kind, with the needed fields that it does not tell."""
    workload: dict[str, Any] = json.loads(json.dumps(NEW_WORKLOADS[draft.kind]))
    for path, value in draft.fields.items():
        *outer, last = path.split("/")
        holder = workload
        for step in outer:
            holder = holder.setdefault(step, {})
        holder[last] = value
    given = {
        one.path for one in WORKLOAD_FIELDS[draft.kind] if value_at(NEW_WORKLOADS[draft.kind], one.steps)
    }
    missing = [
        one.label for one in WORKLOAD_FIELDS[draft.kind] if one.path in given - set(draft.fields) - {"name"}
    ]
    return StartingPoint(found, workload, tuple(missing), tuple(dict.fromkeys(draft.left_out)))


def _of_config(config: Mapping[str, Any], asked: Asked) -> Draft:
    draft = Draft(asked.kind or WorkloadKind.SERVING, asked.source)
    called = config.get("_name_or_path")
    named = called if isinstance(called, str) else ""
    try:
        stored = quantization_of(config)
        stated = None if stored is None else format_of_config(stored).name
        if known_model(named) in load_models():
            draft.name_model(known_model(named), stated or named_format(named))
            return draft
        shape = model_from_hf_config(config, "config.json")
    except (ValueError, RecursionError) as error:
        raise InputError(
            asked.source, (FieldProblem("", str(error), "a transformer's config.json"),)
        ) from error
    alike = [known for known in load_models().values() if _is_alike(known, shape)]
    if alike:
        nearest = min(alike, key=lambda known: abs(known.context - shape.context))
        draft.name_model(nearest.name, stated)
        if shape.packed != nearest.packed_in(shape.published_precision):
            _tell_own_file(draft, asked, "weights that quantization_config keeps in 16 bits")
        if shape.context > nearest.context:
            _tell_own_file(draft, asked, f"a context of {shape.context:,} tokens")
        return draft
    if asked.model_file is None:
        expected = (
            "a model that the broker names; `broker init --from` on the command line takes the file itself"
        )
        raise InputError(
            asked.source, (FieldProblem("", f"a model of {shape.total_params:.3g} parameters", expected),)
        )
    draft.tell("model", asked.model_file)
    if stated is not None:
        draft.tell_format(stated, f"weights in {stated} of quantization_config")
    return draft


def _tell_own_file(draft: Draft, asked: Asked, what: str) -> None:
    """Names the file itself where it differs from the known model of its shape, or leaves that out."""
    if asked.model_file is not None:
        draft.tell("model", asked.model_file)
    else:
        draft.leave(what, f"planned as {draft.fields['model']}; the file beside the document would keep it")


def _is_alike(known: ModelShape, shape: ModelShape) -> bool:
    """Whether both are one architecture of one size."""
    told, asked = (
        (one.attention, one.layers, one.hidden, one.heads, one.kv_heads, one.experts, one.vocab)
        for one in (known, shape)
    )
    return told == asked and abs(known.total_params - shape.total_params) <= SAME_SIZE * shape.total_params


def _of_job(job: Job, asked: Asked) -> Draft:
    """A task, a service or a manifest: its command, and what stands beside it."""
    shell = Shell(job.commands, job.variables)
    found = _of_shell(shell, replace(asked, gpus=job.gpus))
    draft = _of_other_command(job, asked) if found is None else found[1]
    complete(draft, job, shell.used)
    return draft


def _of_other_command(job: Job, asked: Asked) -> Draft:
    """The draft of a job without a known command: of the kind that was asked for, or a SkyPilot service."""
    kind = asked.kind or (job.kind if job.tool == "skypilot" else None)
    first = next((line.strip() for line in job.commands.splitlines() if line.strip()), "no command")
    if kind is None:
        expected = f"a command with {COMMANDS}; or the kind of workload: --kind training, serving or batch"
        problem = FieldProblem(POINTERS[job.tool], repr(first[:SHOWN]), expected)
        raise InputError(asked.source, (problem,))
    draft = Draft(kind, asked.source)
    if job.commands.strip():
        draft.leave(f"run {first[:SHOWN]!r}", "no command that is read")
    return draft


def _of_shell(shell: Shell, asked: Asked) -> tuple[str, Draft] | None:
    """The first server or training run of a text, and what the source is; further ones are left out."""
    found: tuple[str, Draft] | None = None
    for command in shell.commands():
        if found is not None:
            if find_server(command.words) or find_launcher(command.words):
                shown = " ".join(command.words)[:SHOWN]
                found[1].leave(f"the command {shown!r}", "a document is made of the first one alone")
            continue
        found = _of_command(command, asked)
    return found


def _of_command(command: Command, asked: Asked) -> tuple[str, Draft] | None:
    server, launcher = find_server(command.words), find_launcher(command.words)
    if isinstance(server, str):
        expected = f"an engine that the broker plans: {', '.join(ServingEngine)}"
        raise InputError(asked.source, (FieldProblem("", server, expected),))
    if server is not None:
        title = f"a {server.title} line"
        _require_kind(asked, title, (WorkloadKind.SERVING, WorkloadKind.BATCH))
        before = server.before
        draft = draft_of_server(server, asked.source, asked.kind)
    elif launcher is None:
        return None
    else:
        title = f"{'an' if launcher.name[0] in 'aeiou' else 'a'} {launcher.name} line"
        _require_kind(asked, title, (WorkloadKind.TRAINING,))
        before = launcher.before
        draft = draft_of_launcher(launcher, asked.source, asked.gpus)
    names = dict.fromkeys(word.partition("=")[0] for word in before if _OPTION.match(word))
    draft.leave_together(list(names), "the planner chooses the machines that run it", prefix="")
    draft.leave_together(list(command.environment), ENVIRONMENT, prefix="")
    return title, draft


def _require_kind(asked: Asked, title: str, kinds: tuple[WorkloadKind, ...]) -> None:
    """Raises InputError where the source is of another kind than was asked for."""
    if asked.kind is not None and asked.kind not in kinds:
        problem = FieldProblem("/kind", str(asked.kind), f"{' or '.join(kinds)}, which {title} is")
        raise InputError(asked.source, (problem,))


def _leave_environment(draft: Draft, shell: Shell) -> None:
    names = [name for name in shell.exported if name not in shell.used]
    draft.leave_together(names, ENVIRONMENT, prefix="")
