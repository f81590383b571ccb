"""The list of settings: their kinds, limits, defaults and meanings, and what is given for each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from api.given_settings import FILE, PREFIX, load_environment, read_file
from broker.catalogue import load_setting_meanings
from broker.redaction import redacted
from broker.settings import SHORTEST_ADMIN_KEY, SHORTEST_SECRETS_KEY, Settings, data_folder, is_secret
from providers.registry import SPECS
from providers.spec import ProviderSpec

HIDDEN = "set, not shown"
_KINDS: Mapping[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    Decimal: "number",
    Path: "file",
    SecretStr: "secret",
    dict: "JSON object",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as it may be given. ``default`` and ``limits`` are empty where there are none.

    ``provider``: whose setting it is; empty for the broker's own.
    """

    variable: str
    kind: str
    limits: str
    default: str
    says: str
    is_secret: bool
    provider: str = ""


@dataclass(frozen=True, slots=True)
class GivenSetting:
    """A setting and its present value, which for a secret says only that there is one.

    ``source``: ``environment``, ``broker.toml``, ``command line`` or ``default``.
    """

    setting: Setting
    value: str
    source: str


def own_settings() -> tuple[Setting, ...]:
    """The broker's settings, in their order."""
    says = load_setting_meanings()["settings"]
    return tuple(
        Setting(
            f"{PREFIX}{name.upper()}",
            _kind(field.annotation),
            _limits(name, field),
            "" if is_secret(name) else _text(field.get_default(call_default_factory=True)),
            says[name],
            is_secret(name),
        )
        for name, field in Settings.model_fields.items()
    )


def settings_of(spec: ProviderSpec) -> tuple[Setting, ...]:
    """The settings of a provider: its credentials, its options, and those that every provider has."""
    needed = {name: need.says for need in spec.needs for name in need.names}
    secrets = {**spec.credentials, **spec.optional_credentials}
    general = load_setting_meanings()["provider_settings"]
    return (
        *(
            Setting(spec.variable(name), "secret", "", "", says, True, spec.name)
            for name, says in secrets.items()
        ),
        *(
            Setting(spec.variable(name), "text", "", default, needed.get(name, ""), False, spec.name)
            for name, default in spec.options.items()
        ),
        *(
            Setting(spec.variable(name), "text", "", "", says, False, spec.name)
            for name, says in general.items()
        ),
    )


def given_settings(settings: Settings) -> Iterator[GivenSetting]:
    """Every setting of the broker and of its providers with what ``settings`` and the environment say."""
    given = {name.upper() for name in os.environ}
    said = {f"{PREFIX}{name.upper()}": value for name, value in read_file().items()}
    environment = {name.upper(): value for name, value in load_environment().items()}

    def source_of(variable: str) -> str:
        if variable in given:
            return "environment"
        return str(FILE) if variable in said else "default"

    for one, value in zip(own_settings(), dict(settings).values(), strict=True):
        source, text = source_of(one.variable), _value(one, _text(value))
        is_option = source == "default" and not one.is_secret and text != one.default
        yield GivenSetting(one, text, "command line" if is_option else source)
    for one in (setting for spec in SPECS.values() for setting in settings_of(spec)):
        text = environment.get(one.variable, "").strip() or one.default
        yield GivenSetting(one, _value(one, text), source_of(one.variable))


def _value(setting: Setting, text: str) -> str:
    """A value to be shown: of a secret and of a password in an address nothing."""
    if setting.is_secret:
        return HIDDEN if text else ""
    is_plain = "@" not in text and not (text.startswith("http") and urlsplit(text).query)
    return text if is_plain else redacted(text)


def _text(value: Any) -> str:
    """A value in the form in which it is given; empty for none."""
    if value is None or value == {}:
        return ""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return json.dumps(value, default=lambda part: part.model_dump(exclude_none=True))
    text = str(value).replace(str(data_folder()), "~/.local/share/gpu-capacity-broker")
    return text.lower() if isinstance(value, bool) else text


def _kind(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return " or ".join(_kind(one) for one in get_args(annotation) if one is not type(None))
    if origin is Literal:
        return ", ".join(get_args(annotation))
    return _KINDS[origin or annotation]


def _limits(name: str, field: FieldInfo) -> str:
    shortest = {"admin_key": SHORTEST_ADMIN_KEY, "secrets_key": SHORTEST_SECRETS_KEY}.get(name)
    if shortest is not None:
        return f"{shortest} characters or more"
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    return ", ".join(
        f"{sign} {getattr(part, word):,.10g}"
        for word, sign in signs
        for part in field.metadata
        if hasattr(part, word)
    )
