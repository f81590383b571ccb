"""What a source says of a workload, before examples fill the rest."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from api.schemas.imports.tables import NO_FIELD, OptionTable, why_of_field, word
from broker.catalogue import known_model, named_format
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.left_out import LeftOut
from broker.domain.planning.workload import WorkloadKind
from broker.domain.workloads.training_method import BaseFormat
from broker.models.weight_formats import NEAREST, PLANNED

FALSE_WORDS = frozenset({"false", "no", "0", "none", "off", "null", "auto"})
_VARIABLE = re.compile(r"\$\{?\w+\}?")


@dataclass(slots=True)
class Draft:
    """A workload in the making. ``left_out`` has everything of the source that the workload does not have.

    ``spelled``: options by the names that a file has for them, which are told together by reason.
    """

    kind: WorkloadKind
    source: str
    fields: dict[str, Any] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    spelled: dict[str, str] = field(default_factory=dict)

    def tell(self, path: str, value: Any) -> None:
        """Notes a field; None is no value."""
        if value is not None:
            self.fields[path] = value

    def leave(self, what: str, why: str) -> None:
        """Notes what is not used."""
        self.left_out.append(LeftOut(what, why))

    def tell_word(self, name: str, value: Any, what: str) -> None:
        """Notes a word of documents; where they have no field for it yet, ``what`` is left out."""
        known = word(name)
        if known.field:
            self.tell(known.field, value)
        else:
            self.leave(what, known.why)

    def leave_options(self, options: Mapping[str, str], table: OptionTable, set_up: str) -> None:
        """Names options that are not used; those that change nothing together, with ``set_up`` as reason."""
        together: dict[str, list[str]] = {}
        harmless: list[str] = []
        for name, value in options.items():
            why = table.why(name)
            if why is None and table.harmless.fullmatch(name):
                harmless.append(name)
            elif name in self.spelled:
                why = why or (NO_FIELD if is_on(value) else "it is switched off")
                together.setdefault(why, []).append(self.shown(name, value))
            else:
                self.leave(self.shown(name, value), why or NO_FIELD)
        for why, alike in together.items():
            self.leave_together(alike, why, prefix="")
        shown = [self.spelled.get(name, f"--{name}") for name in harmless]
        self.leave_together(shown, set_up, prefix="")

    def shown(self, name: str, value: str) -> str:
        """An option as the source writes it."""
        return f"{self.spelled[name]}: {value}" if name in self.spelled else f"--{name} {value}".rstrip()

    def leave_fields(self, tool: str, names: Iterable[str], prefix: str = "") -> None:
        """Names fields of a tool's file, those of one reason together."""
        together: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            together.setdefault(why_of_field(tool, name), []).append(name)
        for why, alike in together.items():
            self.leave_together(alike, why, prefix)

    def leave_together(self, names: Collection[str], why: str, prefix: str = "--") -> None:
        """Notes several names for one reason."""
        if names:
            self.leave(", ".join(f"{prefix}{name}" for name in names), why)

    def refuse(self, found: str, expected: str) -> NoReturn:
        """Raises InputError for what would make another workload of the source."""
        raise InputError(self.source, (FieldProblem("", found, expected),))

    def name_model(self, named: str | None, stated: str | None = None) -> None:
        """Notes the model and the number format of its weights: the ``stated`` one, else its name's."""
        if named is None:
            return
        if _VARIABLE.search(named):
            self.refuse(
                repr(named), "the name of the model in place of a variable that has no value here, or several"
            )
        self.tell("model", known_model(named))
        found = stated or named_format(named)
        if found is not None:
            self.tell_format(found, f"weights in {found} of {named}")

    def tell_format(self, found: str, what: str) -> None:
        """Notes the number format of the weights; one that no plan has gives the one of its size, or none."""
        if self.kind is WorkloadKind.TRAINING:
            if found in ("bf16", "fp16"):
                return
            if "adapter/kind" in self.fields and found in set(BaseFormat):
                self.fields.setdefault("adapter/base", found)
                return
            self.refuse(what, "a model in 16 bits: weights in fewer bits are trained by adapters alone")
        if found in PLANNED:
            self.tell("precisions", [found])
        elif found in NEAREST:
            self.tell("precisions", [NEAREST[found]])
            self.leave(
                what, f"planned as {NEAREST[found]}, which has their size but needs GPUs that multiply it"
            )
        else:
            self.leave(what, f"no format of a plan ({', '.join(PLANNED)}); state precisions")


def is_on(value: str) -> bool:
    """Whether an option is switched on: it stands alone, or its value is no word for no."""
    return value.strip().lower() not in FALSE_WORDS


def whole(told: Any) -> int | None:
    """A whole number; None for a variable and for other words."""
    text = str(told)
    return int(text) if re.fullmatch(r"\d{1,9}", text) else None


def first_whole(options: Mapping[str, str], names: Collection[str]) -> tuple[str | None, int | None]:
    """The first of ``names`` that is an option with a whole number, and that number."""
    found = ((name, whole(options[name])) for name in names if name in options)
    return next(((name, value) for name, value in found if value is not None), (None, None))
