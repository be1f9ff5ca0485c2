"""`{type: append_file, path: events.ndjson}`: one line of JSON per event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rivet_resources.contracts.settings import Settings


class AppendFile(Settings):
    """A file in place of a pager."""

    type: Literal["append_file"] = "append_file"
    path: Path
    on: tuple[str, ...] = ("failure",)

    def send(self, body: Mapping[str, Any]) -> None:
        """Append what a webhook would get."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(body), default=str) + "\n")
