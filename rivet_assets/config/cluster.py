"""What a cluster of machines cannot do: read or write what only this machine has, or get a secret over a bare line.

Belongs here: refusals that the file alone tells. Not here: whether each host can really reach both ends, which a run
and `rivet doctor` ask the hosts themselves (`rivet_resources/spark/cluster.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import BaseModel, SecretStr
from pydantic_core import InitErrorDetails

from rivet_assets.blocks.choice import refusal
from rivet_assets.blocks.export import Export
from rivet_resources.contracts.settings import Spark, how_to_encrypt
from rivet_resources.contracts.source import Source


def of_one_machine(spark: Spark, exports: Iterable[tuple[Export, Source]]) -> Iterator[InitErrorDetails]:
    """Refuse, where tasks run on other machines, what is of this one."""
    if not spark.is_cluster:
        return
    where = "`spark: remote`" if spark.remote else f"`spark: master: {spark.master}`"
    for index, (export, source) in enumerate(exports):
        loc = ("exports", index)
        for key, block in (("source", source), ("destination", export.destination)):
            # Plugins of before have no such attribute; what they do is asked of the hosts.
            if only_here := getattr(block, "only_here", ""):
                may_be_mounted = hasattr(block, "shared_path")
                mounted = ", or set `shared_path: true` where it is mounted on all" if may_be_mounted else ""
                message = f"{only_here}, and {where} runs tasks on others; use one that every worker reaches{mounted}"
                yield refusal("RIVET_CONFIG_CLUSTER", message, loc=(*loc, key))
        blocks = [
            ("source", source),
            *((f"transforms.{n}", step) for n, step in enumerate(export.transforms)),
            *((f"mask_tags.{tag}", rule) for tag, rule in (export.mask_tags or {}).items()),
        ]
        written = [key for name, block in blocks for key in _written_secrets(block, name)]
        if written and not spark.is_encrypted:
            encrypt = (
                f", or {how_to_encrypt(spark.master)}"
                if spark.remote is None
                else ""  # settings of a client do nothing for its server's lines
            )
            message = (
                f"would travel to the workers over lines that are not encrypted ({where}); name a variable that the "
                f"workers have (`url_env`, `password_env`, `key_env`){encrypt}"
            )
            yield refusal("RIVET_CONFIG_CLUSTER", f"{', '.join(written)} {message}", loc=loc)


def _written_secrets(block: object, name: str) -> Iterator[str]:
    """Yield the keys under which a secret stands in the file, or was filled into it."""
    if isinstance(block, BaseModel):
        for key in type(block).model_fields:
            value = getattr(block, key)
            if isinstance(value, SecretStr):
                yield f"{name}.{key}"
