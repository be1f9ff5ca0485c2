"""`rivet --json-errors …`: the end of a command that failed, as one line of JSON for a script.

Belongs here: the line and the words of its classes. Not here: which exit code an error has (`errors.py`), printing
for people (`main.py`, `launch/outcome.py`).

The line is the last on stderr: {"error": text, "code": a stable code, "exit_class": one of the words below}. Of an
error that is not ours only the class is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

# `contract.md`, section 14: what the exit codes mean.
EXIT_CLASSES = {1: "permanent", 2: "transient", 3: "integrity", 4: "drift", 130: "interrupted"}
INTERNAL = "RIVET_INTERNAL"  # a fault of the program itself
USAGE = "RIVET_USAGE"  # wrong arguments
FINDINGS = "RIVET_FINDINGS"  # a check, a validation or another look found something
UNKNOWN = "RIVET_ERROR"


@dataclass
class JsonErrors:
    """Whether they were asked for; what is told is told once."""

    say: Callable[[str], None]
    wanted: bool = False
    told: bool = False

    def failed(self, error: str, code: str, exit_code: int) -> None:
        """Print the line, if it was asked for."""
        if self.wanted and not self.told:
            self.say(line(error, code, exit_code))
        self.told = True

    def ended(self, exit_code: int) -> None:
        """Print a line for a command that found something wrong, and raised nothing: its own output has more."""
        if exit_code:
            self.failed("the command found something wrong; its output says what", FINDINGS, exit_code)


def line(error: str, code: str, exit_code: int) -> str:
    """Write the line."""
    told = {"error": error, "code": code or UNKNOWN, "exit_class": EXIT_CLASSES.get(exit_code, "permanent")}
    return json.dumps(told, ensure_ascii=False)
