"""Where passwords, keys and URLs with passwords come from: the file, a variable, a file of their own.

Belongs here: reading one, at the moment of connecting. Not here: which keys name one (each block's own model).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

from pydantic import BaseModel, SecretStr

from rivet_resources.errors import ConfigError

Variables = Mapping[str, str]
_lent: dict[str, str] = {}  # to a worker by its driver; never put into the environment, which children inherit


def lend(variables: Variables) -> None:
    """Let this process use variables that its own environment lacks."""
    _lent.update(variables)


def named_variables(*blocks: object) -> Iterator[str]:
    """Yield the variables that blocks of the configuration name, however deep: the values of their `*_env` keys."""
    for block in blocks:
        if isinstance(block, BaseModel):
            for key in type(block).model_fields:
                yield from _named(key, getattr(block, key))
        elif is_dataclass(block):
            for each in fields(block):
                yield from _named(each.name, getattr(block, each.name))
        elif isinstance(block, tuple):
            yield from named_variables(*block)


def _named(key: str, value: object) -> Iterator[str]:
    if key.endswith("_env") and isinstance(value, str):
        yield value
    else:
        yield from named_variables(value)


def resolve_secret(literal: SecretStr | None, *, env: str | None, file: Path | None = None, key: str) -> str | None:
    """Resolve one secret at the moment of connecting: the literal, else the variable, else the file.

    Raises:
        ConfigError: the variable is not set, or the file cannot be read; neither content is shown.
    """
    if literal is not None:
        return literal.get_secret_value()
    if env is not None:
        if env not in os.environ and env not in _lent:
            raise ConfigError(f"Environment variable {env} (from `{key}_env`) is not set. Export it, then run again.")
        return os.environ.get(env, _lent.get(env))
    if file is not None:
        try:
            return Path(file).read_text().strip()
        except OSError as error:
            raise ConfigError(
                f"File {file} (from `{key}_file`) cannot be read: {error.strerror}. "
                f"Write the value into it, or use `{key}_env`."
            ) from error
    return None
