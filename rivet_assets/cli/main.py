"""`rivet …`: finds the command, and turns what it raises into an exit code.

Belongs here: the list of commands, exit codes, how errors are told. Not here: the commands (`commands/`). Everything
is imported by the command that needs it, so that `rivet --version` answers at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module

import click

from rivet_assets.cli.groups import CommandGroup
from rivet_assets.cli.json_errors import INTERNAL, USAGE, JsonErrors
from rivet_assets.run import interruption
from rivet_resources import process_start
from rivet_resources.errors import RivetError

# Where each command is: file in `commands/`, and the name in it. Groups and order are those of `rivet --help`.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "Start here, in this order": {
        "init": "init:init_command",
        "doctor": "doctor:doctor_command",
        "check": "check:check_command",
        "run": "run:run_command",
    },
    "Review a run before it happens": {"plan": "plan:plan_command", "apply": "apply:apply_command"},
    "Prove and repair what is published": {
        "validate": "validate:validate_command",
        "reconcile": "reconcile:reconcile_command",
        "repair": "repair:repair_command",
        "quarantine": "quarantine:quarantine_group",
    },
    "Look after what is published": {
        "compact": "upkeep.compact:compact_command",
        "retain": "upkeep.retain:retain_command",
    },
    "Look around": {
        "status": "status:status_command",
        "profile": "profile:profile_command",
        "discover": "discover:discover_command",
        "state": "state:state_group",
        "metrics": "metrics:metrics_command",
        "journal": "journal:journal_command",
        "audit": "audit:audit_command",
        "contract": "contract:contract_group",
    },
    "Without a configuration": {
        "demo": "demo:demo_command",
        "cdc": "cdc:cdc_command",
    },
    "For shell and editor": {
        "completions": "completions:completions_command",
        "schema": "schema:schema_group",
        "spec": "spec:spec_command",
        "plugins": "plugins:plugins_command",
    },
}
COMMANDS = {name: place for group in GROUPS.values() for name, place in group.items()}

EXAMPLE = """
Example:

  export SHOP_URL='postgresql://user:password@localhost/shop'
  rivet init --source-env SHOP_URL   # writes rivet.yaml
  rivet doctor                       # is everything there, and allowed?
  rivet check                        # how would each export run?
  rivet run

No database at hand? `rivet demo` brings one.
All options of a command: rivet run --help
"""

JSON_ERRORS = "--json-errors"
INTERRUPT = "interrupted; whatever was not committed is invisible, and the next run starts where this one did"


class Commands(CommandGroup):
    """A group whose commands are imported when they are asked for."""

    def headings(self, context: click.Context) -> Mapping[str, Iterable[str]]:
        """Return the groups of the table."""
        return GROUPS

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example as it stands."""
        formatter.write(EXAMPLE)

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import one command; None when there is none of that name."""
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        command: click.Command = getattr(import_module(f"rivet_assets.cli.commands.{module}"), attribute)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments begin with.

        Raises:
            NoSuchCommand: there is none; with the nearest names, which click cannot know of commands not imported.
        """
        try:
            return super().resolve_command(context, arguments)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=context) from None


def main() -> None:
    """Run the command line; the process ends with the command's exit code (`contract.md`, section 14)."""
    process_start.collect_rarely()
    told = JsonErrors(_say)
    with interruption.listening(lambda: _end_interrupted(told)):
        code = _run(told)
    sys.stdout.flush()
    if interruption.is_asked():
        interruption.leave(code)
    sys.exit(code)


def _run(told: JsonErrors) -> int:
    """Run the command, and turn what it raises into an exit code."""
    try:
        code = commands.main(with_json_errors_first(sys.argv[1:]), prog_name="rivet", standalone_mode=False, obj=told)
        # A command that sums up its exports ends with the code of what the interrupt broke.
        if code and interruption.is_asked():
            raise KeyboardInterrupt
        told.ended(code or 0)
        return code or 0
    except BrokenPipeError:
        # Python flushes stdout once more at its end, and would complain of the broken pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BaseException as error:
        if not (interruption.is_asked() or isinstance(error, KeyboardInterrupt | click.Abort)):
            return _end_failed(error, told)
        code = _end_interrupted(told)  # whatever it is: the interrupt broke it
        interruption.end_children()
        return code


def with_json_errors_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--json-errors` before the command, wherever it stands: it is of all commands."""
    options = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    if JSON_ERRORS not in options:
        return list(arguments)
    return [JSON_ERRORS, *(each for each in options if each != JSON_ERRORS), *arguments[len(options) :]]


def _end_failed(error: BaseException, told: JsonErrors) -> int:
    """Return what a command ended with; its exit code."""
    if isinstance(error, click.ClickException):  # wrong usage: click's own exit code, 2, means transient here
        error.show()
        told.wanted = told.wanted or JSON_ERRORS in sys.argv  # it may stand behind what could not be read
        told.failed(error.format_message(), USAGE, 1)
        return 1
    if isinstance(error, RivetError):
        code = _refuse(error)
        told.failed(str(error), error.code, code)
        return code
    if not told.wanted or not isinstance(error, Exception):
        raise error
    traceback.print_exception(error)
    told.failed(type(error).__name__, INTERNAL, 1)
    return 1


def _end_interrupted(told: JsonErrors) -> int:
    """Print once that the command was interrupted; return its exit code."""
    if not told.told:
        _say(INTERRUPT)
    told.failed(INTERRUPT, interruption.CODE, interruption.EXIT_CODE)
    return interruption.EXIT_CODE


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # start

    try:
        return version("rivet")
    except PackageNotFoundError:
        return "0+uninstalled"


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"rivet {_version()}")
        context.exit()


def _want_json_errors(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and isinstance(context.obj, JsonErrors):
        context.obj.wanted = True


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="print it")
@click.option(
    JSON_ERRORS,
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_want_json_errors,
    help="a failure is also one line of JSON on stderr: error, code, exit_class",
)
def commands() -> None:
    """Export databases to checked, committed files, as Dagster assets run by Spark."""


def _say(text: str) -> None:
    click.echo(text, err=True)


def _refuse(error: RivetError) -> int:
    lines = str(error).splitlines() or [type(error).__name__]
    for line in lines:
        _say(f"error: {line}")
    return error.exit_code


if __name__ == "__main__":
    main()
