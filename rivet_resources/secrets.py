"""Where passwords, keys and URLs with passwords come from: the file, a variable, a file of their own, a store.

Belongs here: reading one, at the moment of connecting. Not here: which keys name one (each block's own model), the
stores of secrets (`secret_stores.py`).

A name in `secrets:` is a variable that stands in a store instead of the environment: every key that takes a variable
takes it.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

from pydantic import BaseModel, SecretStr

from rivet_resources.contracts.secret_reference import SecretReference
from rivet_resources.errors import ConfigError
from rivet_resources.secret_file import secret_text

Variables = Mapping[str, str]
REFERENCES = "RIVET_SECRET_REFERENCES"
# A secret that was exchanged in its store is used after so long: connections that a retry opens have the new one.
KEPT_SECONDS = 60.0
_lent: dict[str, str] = {}  # to a worker by its driver; never put into the environment, which children inherit


def lend(variables: Variables) -> None:
    """Let this process use variables that its own environment lacks."""
    _lent.update(variables)


def declare(references: Mapping[str, SecretReference]) -> None:
    """Let names mean secrets in stores, in this process and those it starts.

    Raises:
        ConfigError: one of them means another secret already.
    """
    known = dict(_declared())
    for name, reference in references.items():
        # A location loads many files into one process and one environment: the later one would silently read the
        # other's secret.
        if known.setdefault(name, reference) != reference:
            raise ConfigError(
                f"`secrets: {name}` is {reference.text} here and {known[name].text} in another configuration of this "
                f"process. Give one of them another name."
            )
    if references:
        blocks = {name: each.model_dump(mode="json", exclude_defaults=True) for name, each in known.items()}
        os.environ[REFERENCES] = json.dumps(blocks)


def declared_references() -> Variables:
    """Return the variable that tells other machines where secrets lie; {} where none are declared."""
    # Where each lies is no secret, and travels in a variable of its own (REFERENCES), so that tasks and child processes
    # read what they need by themselves, with the rights of their own machine.
    text = os.environ.get(REFERENCES, _lent.get(REFERENCES, ""))
    return {REFERENCES: text} if text else {}


def is_set(name: str) -> bool:
    """Return whether a variable holds something; one of `secrets:` is taken to, and read when it is used."""
    return name in _declared() or bool(os.environ.get(name))


def _declared() -> Mapping[str, SecretReference]:
    return _parsed(declared_references().get(REFERENCES, "{}"))


@functools.lru_cache(maxsize=8)
def _parsed(text: str) -> Mapping[str, SecretReference]:
    return {name: SecretReference.model_validate(block) for name, block in json.loads(text).items()}


class _Kept:
    """Secrets that were read, each for a minute; in memory only."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, SecretReference], tuple[float, str]] = {}
        self._lock = threading.Lock()

    def read(self, name: str, reference: SecretReference) -> str:
        """Return a secret, read anew once it is older than a minute.

        Raises:
            SecretUnreadable, SecretStoreUnreachable, ExtraMissing
        """
        from rivet_resources.secret_stores import read_secret  # start

        with self._lock:
            # Read inside the lock: of many threads that ask at once, one asks the store.
            at, text = self._found.get((name, reference), (0.0, ""))
            if not at or time.monotonic() - at >= KEPT_SECONDS:
                text = read_secret(name, reference)
                self._found[name, reference] = (time.monotonic(), text)
            return text


_kept = _Kept()


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
        elif isinstance(block, Mapping):
            yield from named_variables(*block.values())


def _named(key: str, value: object) -> Iterator[str]:
    if key.endswith("_env") and isinstance(value, str):
        yield value
    else:
        yield from named_variables(value)


def read_variable(name: str) -> str | None:
    """Return what a variable holds: from its store, where `secrets:` declares it, else from the environment.

    None: it is not set. A declared one is read from its store whatever the environment has under that name.

    Raises:
        SecretUnreadable, SecretStoreUnreachable, ExtraMissing: what `secrets:` says of it cannot be read.
    """
    # The store first: a variable of that name may be left from before the secret was moved there.
    if (reference := _declared().get(name)) is not None:
        return _kept.read(name, reference)
    return os.environ.get(name, _lent.get(name))


def resolve_secret(literal: SecretStr | None, *, env: str | None, file: Path | None = None, key: str) -> str | None:
    """Resolve one secret at the moment of connecting: the literal, else the variable, else the file.

    Raises:
        ConfigError: the variable is not set, or the file cannot be read; neither content is shown.
        SecretUnreadable, SecretStoreUnreachable, ExtraMissing: what `secrets:` says of the variable cannot be read.
    """
    if literal is not None:
        return literal.get_secret_value()
    if env is not None:
        if (found := read_variable(env)) is None:
            raise ConfigError(f"Environment variable {env} (from `{key}_env`) is not set. Export it, then run again.")
        return found
    if file is not None:
        try:
            return secret_text(Path(file)).strip()
        except ValueError as error:
            raise ConfigError(
                f"File {file} (from `{key}_file`) cannot be read: {error}. Write the value into it, or use `{key}_env`."
            ) from None
    return None


def resolve_store_key(env: str | None, *, key: str) -> str | None:
    """Resolve what signs requests to an object store, without blanks around it; a password may be empty, this not.

    Raises:
        ConfigError: the variable is not set, or holds nothing: a store would say that the signature is wrong.
        SecretUnreadable, SecretStoreUnreachable, ExtraMissing: what `secrets:` says of the variable cannot be read.
    """
    found = resolve_secret(None, env=env, key=key)
    # A line end comes with a file that was read into a variable.
    if found is not None and not found.strip():
        raise ConfigError(f"Environment variable {env} (from `{key}_env`) is empty. Export its value, then run again.")
    return found if found is None else found.strip()
