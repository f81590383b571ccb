"""Settings of the installation: environment first, then ``broker.toml``, then defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)


def default_database_url() -> str:
    """A SQLite file under the user's data folder."""
    folder = Path.home() / ".local" / "share" / "gpu-capacity-broker"
    return f"sqlite+aiosqlite:///{folder / 'broker.db'}"


def default_calibration_file() -> Path:
    """The user's own measured rows, beside the default database."""
    return Path.home() / ".local" / "share" / "gpu-capacity-broker" / "measured.csv"


class ProviderQuota(BaseModel):
    """The most that the whole installation may hold of a provider at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpus: int | None = Field(default=None, ge=0)
    nodes: int | None = Field(default=None, ge=0)


class Settings(BaseSettings):
    """What the contract's section 8 names; each is also a key of ``broker.toml`` without the prefix."""

    model_config = SettingsConfigDict(
        env_prefix="BROKER_", toml_file="broker.toml", extra="ignore", frozen=True
    )

    database_url: str = Field(default_factory=default_database_url)
    sandbox_url: str | None = None
    calibration_file: Path = Field(default_factory=default_calibration_file)
    url: str = "http://127.0.0.1:8080"
    key: SecretStr | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    admin_key: SecretStr | None = None
    secrets_key: SecretStr | None = None
    poll_seconds: float = Field(default=60.0, gt=0)
    reconcile_seconds: float = Field(default=15.0, gt=0)
    reoptimize_seconds: float = Field(default=900.0, gt=0)
    debounce_seconds: float = Field(default=2.0, ge=0)
    replan_time_limit_s: float = Field(default=6.0, gt=0)
    solver_executor: str = Field(default="process", pattern=r"^(process|thread|dask://.+:\d+)$")
    plan_time_limit_s: float = Field(default=20.0, gt=0)
    plan_workers: int | None = Field(default=None, ge=1, le=256)
    plan_max_churn_premium: float = Field(default=0.002, ge=0, le=0.5)
    price_tolerance: float = Field(default=0.02, ge=0, le=1)
    approval_limit_usd: float | None = Field(default=None, ge=0)
    four_eyes: bool = False
    traffic_growth: float = Field(default=0.0, gt=-1, le=10)
    traffic_spread: float = Field(default=0.1, ge=0, le=3)
    budget_seconds: float = Field(default=60.0, gt=0)
    roll_up_seconds: float = Field(default=60.0, gt=0)
    webhook_seconds: float = Field(default=5.0, gt=0)
    webhook_allow_loopback: bool = False
    history_full_days: int = Field(default=90, ge=1)
    history_kept_days: int = Field(default=1100, ge=1)
    rounds_kept_days: int = Field(default=30, ge=1)
    contract_prices: Path | None = None
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
        """Arguments, then environment, then the TOML file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)
