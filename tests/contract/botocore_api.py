"""Amazon's service models, as botocore carries them: EC2 (forms and XML) and SageMaker (JSON).

A call is written ``POST /<service>/<operation>``. A form and an XML document become values by the model of
their operation, with the names that stand on the wire; what the model does not know stays in them as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import parse_qsl
from xml.etree.ElementTree import Element

import botocore.session
import httpx
from defusedxml.ElementTree import fromstring

from tests.contract.description import Heard, Shape

NOT_OF_THE_OPERATION = {"Action", "Version"}
SCALARS = {
    "string": "string",
    "timestamp": "any",
    "boolean": "boolean",
    "integer": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "blob": "string",
}
"""A timestamp is a text in XML and a number in JSON."""


@cache
def _model(service: str) -> Any:
    return botocore.session.get_session().get_service_model(service)


def facts(listed: Mapping[str, Any]) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, Shape]]:
    """Calls and shapes of the calls ``listed``. OperationNotFoundError for one that there is not."""
    calls: dict[str, Mapping[str, Any]] = {}
    shapes: dict[str, Shape] = {}
    for key in listed:
        service, operation = key.removeprefix("POST /").split("/")
        model = _model(service).operation_model(operation)
        body = _shape(model.input_shape, shapes, service, "in") if model.input_shape else None
        answer = _shape(model.output_shape, shapes, service, "out") if model.output_shape else "any"
        calls[key] = {"body": body, "answers": {"200": answer}}
    return calls, shapes


def _shape(model: Any, shapes: dict[str, Shape], service: str, way: str) -> Shape:
    if model.type_name == "list":
        return [_shape(model.member, shapes, service, way)]
    if model.type_name == "map":
        return {"*": _shape(model.value, shapes, service, way)}
    if model.type_name != "structure":
        words = getattr(model, "enum", None)
        return {"$words": list(words)} if words else SCALARS[model.type_name]
    name = f"{service}.{model.name}.{way}"
    if name not in shapes:
        shapes[name] = "any"
        fields = {
            _wire_name(field, member, service, way)
            + ("!" if field in model.required_members else ""): _shape(member, shapes, service, way)
            for field, member in model.members.items()
        }
        if service == "ec2" and way == "out":
            fields["requestId"] = "string"
        shapes[name] = fields or "object"
    return f"@{name}"


def _wire_name(field: str, member: Any, service: str, way: str) -> str:
    name: str = member.serialization.get("name", field)
    if service != "ec2" or way == "out":
        return name
    name = member.serialization.get("queryName", name)
    return name[0].upper() + name[1:]


def heard(request: httpx.Request, answer: httpx.Response) -> Heard | None:
    """A call of a service; None for a file of the price list."""
    target = request.headers.get("x-amz-target", "")
    if target:
        service, _, operation = target.partition(".")
        sent, told = json.loads(request.content), json.loads(answer.content or b"null")
        return Heard("POST", f"/{service.lower()}/{operation}", [], sent, answer.status_code, told)
    if request.method != "POST":
        return None
    form = dict(parse_qsl(request.content.decode(), keep_blank_values=True))
    model = _model("ec2").operation_model(form["Action"])
    fields = {name: text for name, text in form.items() if name not in NOT_OF_THE_OPERATION}
    told = None
    if answer.status_code == 200:
        told = _of_xml(fromstring(answer.content), model.output_shape)
    return Heard(
        "POST", f"/ec2/{form['Action']}", [], _of_form(fields, model.input_shape), answer.status_code, told
    )


def _of_form(fields: Mapping[str, str], model: Any) -> Any:
    """Dotted names as nested values: numbers count the items of a list."""
    tree: dict[str, Any] = {}
    for name, text in fields.items():
        *above, last = name.split(".")
        inner = tree
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = text
    return _typed(tree, model)


def _typed(value: Any, model: Any) -> Any:
    if isinstance(value, dict) and model is not None and model.type_name == "list":
        return [_typed(each, model.member) for each in value.values()]
    if isinstance(value, dict):
        members = {} if model is None or model.type_name != "structure" else model.members
        known = {_wire_name(field, member, "ec2", "in"): member for field, member in members.items()}
        return {name: _typed(each, known.get(name)) for name, each in value.items()}
    return _scalar(value, model)


def _scalar(text: str, model: Any) -> Any:
    """The number or truth value that a text stands for, where the model wants one; else the text."""
    if model is None or SCALARS.get(model.type_name) not in {"boolean", "integer", "number"}:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _of_xml(element: Element, model: Any) -> Any:
    if model is None:
        return element.text or ""
    if model.type_name == "list":
        return [_of_xml(item, model.member) for item in element]
    if model.type_name == "structure":
        known = {_wire_name(field, member, "ec2", "out"): member for field, member in model.members.items()}
        plain = {each.tag.rpartition("}")[2]: each for each in element}
        return {name: _of_xml(each, known.get(name)) for name, each in plain.items()}
    return _scalar(element.text or "", model)
