"""Settings of the installation: environment first, then ``broker.toml``, then defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

NETWORKS = "inner networks with commas between, such as 10.20.0.0/16, fd00:12::/32"
SHORTEST_ADMIN_KEY = 24
SHORTEST_SECRETS_KEY = 32
WANTED: Mapping[str, str] = MappingProxyType(
    {
        "admin_key": f"{SHORTEST_ADMIN_KEY} or more characters without spaces around them, "
        "such as `openssl rand -base64 32` prints",
        "secrets_key": f"{SHORTEST_SECRETS_KEY} or more characters, such as `openssl rand -base64 32` prints "
        "(several keys with commas between)",
    }
)
"""Required values of settings that accept only some values."""


def data_folder() -> Path:
    """The data folder of this user's installation."""
    return Path.home() / ".local" / "share" / "gpu-capacity-broker"


def default_database_url() -> str:
    """A SQLite file in the user's data folder."""
    return f"sqlite+aiosqlite:///{data_folder() / 'broker.db'}"


def default_calibration_file() -> Path:
    """The file of the user's own measurements, beside the default database."""
    return data_folder() / "measured.csv"


class ProviderQuota(BaseModel):
    """Maximum of what the installation may hold of a provider at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpus: int | None = Field(default=None, ge=0)
    nodes: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _refuse_no_limit(self) -> ProviderQuota:
        if self.gpus is None and self.nodes is None:
            raise ValueError("a limit: gpus, nodes or both")
        return self


class TeamCap(BaseModel):
    """The most that a team may hold per hour, and be billed on a day, in USD."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    usd_per_hour: Decimal | None = Field(default=None, ge=0, allow_inf_nan=False)
    usd_per_day: Decimal | None = Field(default=None, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _refuse_no_limit(self) -> TeamCap:
        if self.usd_per_hour is None and self.usd_per_day is None:
            raise ValueError("a limit: usd_per_hour, usd_per_day or both")
        return self

    @field_serializer("usd_per_hour", "usd_per_day")
    def _as_number(self, usd: Decimal | None) -> float | None:
        return None if usd is None else float(usd)


class _Environment(EnvSettingsSource):
    """The environment. Values that should be JSON and are not are left to the validation of the setting."""

    def prepare_field_value(
        self, field_name: str, field: FieldInfo, value: Any, value_is_complex: bool
    ) -> Any:
        """The value of a variable, decoded from JSON if the setting needs it."""
        try:
            return super().prepare_field_value(field_name, field, value, value_is_complex)
        except ValueError:
            return value


class Settings(BaseSettings):
    """The settings. Each is an environment variable, and a key of ``broker.toml`` without the prefix.

    An empty value is refused: an empty ``BROKER_ADMIN_KEY=`` usually comes from another variable that is not
    set, and does not mean "no key". The same holds for limits, addresses and files.
    """

    model_config = SettingsConfigDict(
        env_prefix="BROKER_",
        toml_file="broker.toml",
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    database_url: str = Field(default_factory=default_database_url, repr=False)
    sandbox_url: str | None = None
    calibration_file: Path = Field(default_factory=default_calibration_file)
    url: str = "http://127.0.0.1:8080"
    key: SecretStr | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    drain_seconds: float = Field(default=5.0, ge=0, le=600)
    admin_key: SecretStr | None = None
    secrets_key: SecretStr | None = None
    public_url: str | None = Field(default=None, pattern=r"^https?://[^/?#]+$")
    oidc_issuer: str | None = Field(default=None, pattern=r"^https?://[^?#]+$")
    oidc_client_id: str | None = None
    oidc_client_secret: SecretStr | None = None
    oidc_audience: str | None = None
    oidc_scopes: str = "openid profile email"
    oidc_name: str = "single sign-on"
    oidc_team_claim: str = "groups"
    oidc_teams: dict[str, str] = Field(default_factory=dict)
    oidc_role_claim: str = "groups"
    oidc_roles: dict[str, Literal["viewer", "member", "approver", "admin"]] = Field(default_factory=dict)
    oidc_default_role: Literal["viewer", "member", "approver", "none"] = "viewer"
    oidc_confirm_minutes: float = Field(default=10.0, ge=1, le=15)
    poll_seconds: float = Field(default=60.0, gt=0)
    reconcile_seconds: float = Field(default=15.0, gt=0)
    reoptimize_seconds: float = Field(default=900.0, gt=0)
    debounce_seconds: float = Field(default=2.0, ge=0)
    replan_time_limit_s: float = Field(default=6.0, gt=0)
    solver_executor: str = Field(default="process", pattern=r"^(process|thread|dask://.+:\d+)$")
    planner_processes: int = Field(default=2, ge=1, le=64)
    planner_memory_gib: float = Field(default=4.0, ge=1, le=65536)
    plan_time_limit_s: float = Field(default=20.0, gt=0)
    plan_workers: int | None = Field(default=None, ge=1, le=256)
    team_plans_at_once: int = Field(default=50, ge=1)
    team_workloads_at_once: int = Field(default=100_000, ge=1)
    price_tolerance: float = Field(default=0.02, ge=0, le=1)
    approval_limit_usd: float | None = Field(default=None, ge=0)
    four_eyes: bool = False
    traffic_growth: float = Field(default=0.0, gt=-1, le=10)
    traffic_spread: float = Field(default=0.1, ge=0, le=3)
    budget_seconds: float = Field(default=60.0, gt=0)
    roll_up_seconds: float = Field(default=60.0, gt=0)
    webhook_seconds: float = Field(default=5.0, gt=0)
    webhook_allow_loopback: bool = False
    webhook_networks: str | None = None
    history_full_days: int = Field(default=90, ge=1)
    history_kept_days: int = Field(default=1100, ge=1)
    rounds_kept_days: int = Field(default=30, ge=1)
    answers_kept_days: int = Field(default=7, ge=1)
    deliveries_kept_days: int = Field(default=30, ge=1)
    audit_kept_days: int = Field(default=1100, ge=1)
    orders: Literal["sandbox", "on", "off"] = "sandbox"
    max_usd_per_hour: Decimal | None = Field(default=None, ge=0, allow_inf_nan=False)
    max_usd_per_day: Decimal | None = Field(default=None, ge=0, allow_inf_nan=False)
    team_caps: dict[str, TeamCap] = Field(default_factory=dict)
    team_secrets: dict[str, list[str]] = Field(default_factory=dict)
    paused: bool = False
    strays: Literal["release", "keep"] = "release"
    contract_prices: Path | None = None
    exchange_rates: Path | None = None
    provider_quotas: dict[str, ProviderQuota] = Field(default_factory=dict)
    log_format: Literal["console", "json"] = "console"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Sources in order of priority: arguments, environment, TOML file."""
        return init_settings, _Environment(settings_cls), TomlConfigSettingsSource(settings_cls)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_empty(cls, value: Any, info: ValidationInfo) -> Any:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if isinstance(text, str) and not text.strip():
            assert info.field_name is not None
            raise ValueError(_instead(info.field_name, cls.model_fields[info.field_name]))
        return value

    @field_validator("*")
    @classmethod
    def _refuse_infinite(cls, value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("a finite number")
        return value

    @field_validator("history_kept_days")
    @classmethod
    def _refuse_short_history(cls, value: int, info: ValidationInfo) -> int:
        full = info.data.get("history_full_days", value)
        if value < full:
            raise ValueError(f"at least the {full} days of BROKER_HISTORY_FULL_DAYS")
        return value

    @field_validator("webhook_networks")
    @classmethod
    def _refuse_public_networks(cls, value: str | None) -> str | None:
        networks_of(value)
        return value

    @field_validator("admin_key")
    @classmethod
    def _refuse_weak_admin_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            key = value.get_secret_value()
            if len(key) < SHORTEST_ADMIN_KEY or key != key.strip():
                raise ValueError(WANTED["admin_key"])
        return value

    @field_validator("secrets_key")
    @classmethod
    def _refuse_weak_secrets_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            keys = value.get_secret_value().split(",")
            if any(len(key.strip()) < SHORTEST_SECRETS_KEY for key in keys):
                raise ValueError(WANTED["secrets_key"])
        return value


def networks_of(text: str | None) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks of a setting. Raises ValueError for one that is public or of this link alone."""
    try:
        found = tuple(ip_network(part.strip()) for part in (text or "").split(",") if part.strip())
    except ValueError:
        raise ValueError(NETWORKS) from None
    if any(network.is_global or network.is_link_local for network in found):
        raise ValueError(NETWORKS)
    return found


def is_secret(name: str) -> bool:
    """Whether the value of the setting ``name`` must not be shown."""
    field = Settings.model_fields.get(name)
    return field is not None and "SecretStr" in str(field.annotation)


def _instead(name: str, field: FieldInfo) -> str:
    """What to write instead of an empty value."""
    default = field.get_default(call_default_factory=True)
    otherwise = "to have none" if default in (None, {}) else f"for {default}"
    return f"{WANTED.get(name, 'a value')}; unset it {otherwise}"
