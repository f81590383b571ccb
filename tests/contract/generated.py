"""Models that sellers generate from their own descriptions, as their packages carry them.

A table names a model as ``module:Class``. Known forms: pydantic models, typed dicts and data classes; and the
classes of swagger-codegen and of OCI, which list their fields in ``swagger_types`` and ``attribute_map``.
Methods, paths and queries stand in the table itself: they are written into the packages' functions.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import is_typeddict

from tests.contract.condense import Condenser
from tests.contract.description import Shape

PLAIN = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "datetime": "string"}


class Models:
    """Reads models; ``shapes`` is what was read so far, by name."""

    def __init__(self) -> None:
        self.shapes: dict[str, Shape] = {}

    def shape(self, told: Shape) -> Shape:
        """``told`` with every model in it as a shape."""
        if isinstance(told, list):
            return [self.shape(each) for each in told]
        if isinstance(told, dict):
            return {name: each if name == "$words" else self.shape(each) for name, each in told.items()}
        if not isinstance(told, str) or ":" not in told:
            return told
        module, _, name = told.partition(":")
        model = getattr(importlib.import_module(module), name)
        return (
            self._listed(model)
            if hasattr(model, "swagger_types") or _is_of_oci(model)
            else self._typed(model)
        )

    def _typed(self, model: Any) -> Shape:
        schema = _adapter(model).json_schema(by_alias=True, mode="validation")
        condenser = Condenser({"paths": {}, **schema}, "")
        shape = _as_marked(condenser.condensed(schema), model)
        beside = importlib.import_module(model.__module__)
        for name, each in condenser.shapes.items():
            condenser.shapes[name] = _as_marked(each, getattr(beside, name, None))
        place = f"{model.__module__}:{model.__qualname__}"
        self.shapes |= {f"{place}/{name}": _moved(each, place) for name, each in condenser.shapes.items()}
        return _moved(shape, place)

    def _listed(self, model: Any) -> Shape:
        name = f"{model.__module__}:{model.__qualname__}"
        if name not in self.shapes:
            self.shapes[name] = "any"
            fields = model() if _is_of_oci(model) else model
            package = importlib.import_module(model.__module__.rpartition(".")[0])
            self.shapes[name] = {
                fields.attribute_map[field]: self._of_word(word, package)
                for field, word in fields.swagger_types.items()
            } or ("string" if any(each.isupper() for each in vars(model)) else "object")
            # without fields: an enumeration, whose words are attributes, or an empty object
        return f"@{name}"

    def _of_word(self, word: str, package: Any) -> Shape:
        if found := re.fullmatch(r"list\[(.*)\]", word):
            return [self._of_word(found[1], package)]
        if found := re.fullmatch(r"dict\(str, (.*)\)", word):
            return {"*": self._of_word(found[1], package)}
        if word in PLAIN:
            return PLAIN[word]
        model = getattr(package, word, None)
        return "any" if model is None else self._listed(model)


def _adapter(model: Any) -> TypeAdapter[Any]:
    """An adapter of ``model``; Azure's typed dicts name enumerations that their module does not import."""
    adapter = TypeAdapter(model)
    if not adapter.pydantic_complete:
        module = importlib.import_module(model.__module__)
        words = importlib.import_module(f"{module.__package__}.models")
        adapter.rebuild(force=True, _types_namespace={**vars(words), **vars(module)})
    return adapter


def _is_of_oci(model: Any) -> bool:
    return str(model.__module__).startswith("oci.")


def _moved(shape: Shape, place: str) -> Shape:
    """``shape`` with its names under ``place``; ``type_`` and the like are Python's spelling of ``type``."""
    if isinstance(shape, str):
        return f"@{place}/{shape[1:]}" if shape.startswith("@") else shape
    if isinstance(shape, list):
        return [_moved(each, place) for each in shape]
    if "$words" in shape:
        return shape
    return {re.sub(r"_(!?)$", r"\1", name): _moved(each, place) for name, each in shape.items()}


def _as_marked(shape: Shape, model: Any) -> Shape:
    """``shape`` of a typed dict where only fields that are marked so must be there.

    Azure derives its typed dicts from ones without needed fields and marks the needed ones; Python takes all
    fields of the derived ones for needed.
    """
    if not is_typeddict(model) or not isinstance(shape, dict):
        return shape
    marked = {name for name, kind in model.__annotations__.items() if "Required[" in str(kind)}
    bare = {name.removesuffix("!"): each for name, each in shape.items()}
    return {f"{name}!" if name in marked else name: each for name, each in bare.items()}


def facts(calls: Mapping[str, Any]) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, Shape]]:
    """``calls`` with the shapes of the models that they name."""
    models = Models()
    told: dict[str, Mapping[str, Any]] = {}
    for key, call in calls.items():
        answers = {status: models.shape(shape) for status, shape in call["answers"].items()}
        told[key] = {**call, "answers": answers}
        for part in {"query", "body"} & set(call):
            told[key] = {**told[key], part: _without_variables(models, models.shape(call[part]), key)}
    return told, models.shapes


def _without_variables(models: Models, body: Shape, path: str) -> Shape:
    """``body`` without what stands in the path: some packages put both into one model."""
    fields = models.shapes[body[1:]] if isinstance(body, str) and body.startswith("@") else body
    if not isinstance(fields, dict) or "$any" in fields:
        return body
    in_path = set(re.findall(r"\{(\w+)\}", path))
    return {name: shape for name, shape in fields.items() if name.removesuffix("!") not in in_path}
