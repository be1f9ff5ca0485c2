"""Where passwords, keys and URLs with passwords come from: the file, a variable, a file of their own.

Belongs here: reading one, at the moment of connecting. Not here: which keys name one (each block's own model).
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import SecretStr

from rivet_resources.errors import ConfigError


def resolve_secret(literal: SecretStr | None, *, env: str | None, file: Path | None = None, key: str) -> str | None:
    """Resolve one secret at the moment of connecting: the literal, else the variable, else the file.

    Raises:
        ConfigError: the variable is not set, or the file cannot be read; neither content is shown.
    """
    if literal is not None:
        return literal.get_secret_value()
    if env is not None:
        if env not in os.environ:
            raise ConfigError(f"Environment variable {env} (from `{key}_env`) is not set. Export it, then run again.")
        return os.environ[env]
    if file is not None:
        try:
            return Path(file).read_text().strip()
        except OSError as error:
            raise ConfigError(
                f"File {file} (from `{key}_file`) cannot be read: {error.strerror}. "
                f"Write the value into it, or use `{key}_env`."
            ) from error
    return None
