"""The base of every YAML block, and the blocks that belong to no one engine: tuning, TLS, Spark.

Belongs here: frozen settings and how they resolve. Not here: settings of one engine, format or
destination; they sit beside the behaviour they configure.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from rivet_resources.errors import ConfigError


class Settings(BaseModel):
    """A block of YAML as a value: frozen, unknown keys refused."""

    # Inputs are hidden, since a value that does not fit may be a password in the wrong key.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


# Blocks are validated one by one, far from who knows the file that they stand in.
_config_folder: ContextVar[Path | None] = ContextVar("config_folder", default=None)


@contextmanager
def beside(file: Path) -> Iterator[None]:
    """Let blocks that name files find them beside this configuration, until the end."""
    token = _config_folder.set(file.parent)
    try:
        yield
    finally:
        _config_folder.reset(token)


def beside_config(path: Path) -> Path:
    """Return where a file named in a configuration lies: beside it, or where the process works if there is none."""
    return (_config_folder.get() or Path()) / path


# 1 KB = 1024 (`contract.md`, 1.5, `max_file_size`).
SIZE_UNITS = {"": 1, "b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3}


def parse_size(text: object) -> object:
    """Turn `256MB`, `1.5 GB` or a number of bytes into whole bytes, at least 1.

    Raises:
        ValueError: not a number with an optional unit, or below one byte.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    if isinstance(text, bool) or not match or match[2].lower() not in SIZE_UNITS:
        raise ValueError("is not a size; write a number with an optional unit B, KB, MB or GB, such as 256MB")
    size = int(float(match[1]) * SIZE_UNITS[match[2].lower()])
    if size < 1:
        raise ValueError("is below one byte; write at least 1B")
    return size


Size = Annotated[int, BeforeValidator(parse_size, json_schema_input_type=str | int)]


class Tls(Settings):
    """How the line to the source is protected."""

    mode: Literal["disable", "require", "verify-ca", "verify-full"] = Field(
        "verify-full",
        description="require encrypts unchecked; verify-ca checks the certificate, verify-full the host name too",
    )
    ca_file: Path | None = Field(None, description="PEM file with the certificate authority")


class Tuning(Settings):
    """How hard a source may be driven. A field left out takes the profile's value.

    The export's block overrides the source's field by field (`merged`); the profile itself too.
    """

    profile: Literal["fast", "balanced", "safe"] | None = Field(None, description="default: balanced")
    batch_size: int | None = Field(None, ge=1, description="rows per fetch")
    batch_size_memory_mb: int | None = Field(None, ge=1, description="derive batch_size from row width instead")
    throttle_ms: int | None = Field(None, ge=0, description="pause per full batch; shorter batches pause in proportion")
    statement_timeout_s: int | None = Field(None, ge=0, description="longest single statement; 0: none")
    lock_timeout_s: int | None = Field(None, ge=0, description="longest wait for a lock; 0: none")
    max_retries: int | None = Field(None, ge=0, description="tries after the first, per page")
    retry_backoff_ms: int | None = Field(None, ge=0, description="first pause before a retry; doubles, at most 60 s")
    memory_threshold_mb: int | None = Field(None, ge=0, description="wait while the task's memory is above it; 0: off")
    max_value_mb: int | None = Field(None, ge=0, description="largest single cell; 0: no limit")
    adaptive: bool | None = Field(None, description="read slower while the source suffers")
    min_parallel: int | None = Field(None, ge=1, description="tasks that a step down leaves running, at least")


# `contract.md`, 1.4; but `adaptive` is false in all profiles there. Ours: true where the profile means to be gentle,
# since a governor that nobody switches on protects nobody; a run shorter than its first look pays nothing for it.
PROFILES: Mapping[str, Mapping[str, int]] = {
    "fast": {"batch_size": 50_000, "throttle_ms": 0, "statement_timeout_s": 0, "max_retries": 1,
             "retry_backoff_ms": 1_000, "lock_timeout_s": 0, "memory_threshold_mb": 0, "max_value_mb": 256,
             "adaptive": False, "min_parallel": 1},
    "balanced": {"batch_size": 10_000, "throttle_ms": 50, "statement_timeout_s": 300, "max_retries": 3,
                 "retry_backoff_ms": 2_000, "lock_timeout_s": 30, "memory_threshold_mb": 0, "max_value_mb": 256,
                 "adaptive": True, "min_parallel": 1},
    "safe": {"batch_size": 2_000, "throttle_ms": 500, "statement_timeout_s": 120, "max_retries": 5,
             "retry_backoff_ms": 5_000, "lock_timeout_s": 10, "memory_threshold_mb": 0, "max_value_mb": 256,
             "adaptive": True, "min_parallel": 1},
}  # fmt: skip


class Pace(Settings):
    """Tuning with every field decided: what a task obeys."""

    profile: Literal["fast", "balanced", "safe"]
    batch_size: int
    batch_size_is_explicit: bool  # the user's own number also caps pages that are sized by bytes
    batch_size_memory_mb: int | None
    throttle_ms: int
    statement_timeout_s: int
    lock_timeout_s: int
    max_retries: int
    retry_backoff_ms: int
    memory_threshold_mb: int
    max_value_mb: int
    adaptive: bool
    min_parallel: int
    reads_ahead: bool = True  # the next page may be asked for while one is decoded; not where each page is counted


def pace(source: Tuning | None, export: Tuning | None) -> Pace:
    """Merge the two tuning blocks, the export's fields first, over the profile's values.

    Raises:
        ConfigError: `batch_size` and `batch_size_memory_mb` are both set after the merge.
    """
    given: dict[str, Any] = {}
    for block in (source, export):
        if block is not None:
            # The export's block comes last, and wins field by field.
            given |= block.model_dump(exclude_none=True)
    if "batch_size" in given and "batch_size_memory_mb" in given:
        raise ConfigError(
            "tuning sets both batch_size and batch_size_memory_mb (source and export blocks merged); keep one of them."
        )
    profile = given.pop("profile", "balanced")
    values = {**PROFILES[profile], "batch_size_memory_mb": None, **given}
    return Pace(profile=profile, batch_size_is_explicit="batch_size" in given, **values)


# Spark's settings that encrypt what driver and executors tell each other, tasks with their closures included.
ENCRYPTING = (
    "spark.network.crypto.enabled", "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption",
)  # fmt: skip


def is_cluster(master: str) -> bool:
    """Return whether tasks of a master run in other processes than this machine's own JVM."""
    # `local-cluster` starts workers in processes of their own, which is a cluster in every way that matters here.
    return not master.startswith("local") or master.startswith("local-cluster")


# A file in each pod that holds the secret of Spark's own lines. Without, Spark writes it into the specification of each
# pod, which every account that may look at pods reads (Spark 4.3, BasicExecutorFeatureStep.scala). Not its sibling
# `.executor.file`: an executor's first question to the driver, with which it begins, does not read that one.
SECRET_FILE = "spark.authenticate.secret.file"


def is_kubernetes(master: str) -> bool:
    """Return whether a master's form is that of Kubernetes."""
    return master.startswith("k8s://")


def is_encrypted(conf: Any, master: str) -> bool:
    """Return whether the driver's messages to its executors are encrypted, with a secret that nobody else can read.

    Args:
        conf: a mapping of Spark's settings, or a SparkConf.
    """
    return _asks_for_encryption(conf) and not shows_its_secret(conf, master)


def _asks_for_encryption(conf: Any) -> bool:
    # Authentication too: an encrypted line to somebody unknown keeps no secret.
    return str(conf.get("spark.authenticate", "")) == "true" and any(conf.get(key, "") == "true" for key in ENCRYPTING)


def shows_its_secret(conf: Any, master: str) -> bool:
    """Return whether lines are encrypted by a secret that stands in the specification of pods."""
    return is_kubernetes(master) and _asks_for_encryption(conf) and not conf.get(SECRET_FILE, "")


def how_to_encrypt(master: str) -> str:
    """Return the settings that `is_encrypted` asks for, in words."""
    files = (
        f", and name files with Spark's secret in {SECRET_FILE} and spark.authenticate.secret.driver.file"
        if is_kubernetes(master)
        else ""
    )
    return f'set spark.authenticate and spark.network.crypto.enabled to "true" in `spark: conf`{files}'


class Spark(Settings):
    """Where and how the work runs. The default is this machine."""

    engine: Literal["spark", "inline"] = Field(
        "spark", description="inline: the same task in this process, without a JVM; for tiny tables and unit tests"
    )
    master: str = Field("local[*,3]", description="any Spark master; local[N,3] gives each task three attempts")
    remote: str | None = Field(
        None,
        description="a Spark Connect endpoint, sc://host:15002, instead of master; needs the extra `connect`",
    )
    resource: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="key of a Dagster resource that has a `spark_session`, such as PySparkResource: runs on its Spark",
    )
    driver_memory: str = Field("512m", description="heap of the driver's JVM; no row passes through it")
    jit: Literal["fast-start", "full"] = Field("fast-start", description="full: for jobs whose rows do enter the JVM")
    niceness: int = Field(
        10, ge=0, le=19, description="how far the JVM and its tasks stand back for other processes of this machine"
    )
    conf: dict[str, str] = Field(default_factory=dict, description="further Spark settings, passed as they are")

    @property
    def is_cluster(self) -> bool:
        """Return whether tasks run on other machines; of a project's own Spark nobody knows before it starts."""
        return self.engine == "spark" and (self.remote is not None or is_cluster(self.master))

    @property
    def is_encrypted(self) -> bool:
        """Return whether what the driver tells a cluster's tasks is encrypted, as far as the settings tell."""
        # A Connect server was started with settings of its own; those of its client reach neither its line nor its
        # workers.
        return self.remote is None and is_encrypted(self.conf, self.master)

    @model_validator(mode="after")
    def one_spark(self) -> Self:
        """Refuse settings of our own Spark beside the project's."""
        unused = sorted(self.model_fields_set - {"resource", "engine"})
        if self.resource and (unused or self.engine == "inline"):
            raise PydanticCustomError(
                "RIVET_CONFIG_SPARK",
                "has `resource`, which brings a Spark with settings of its own, and {unused}; keep one of the two",
                {"unused": ", ".join(unused) or "inline"},
            )
        return self
