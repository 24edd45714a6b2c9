"""The commands of ``asyncstate``, or ``python -m asyncstate``, and their groups.

Owns: the tree of commands. Must not import Spark.
"""

from __future__ import annotations

from typing import Annotated

import typer

from asyncstate import __version__
from asyncstate.cli import inspecting, migrating, statements, upkeep

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
state = typer.Typer(
    no_args_is_help=True, help="Show, verify, migrate and roll back the state in a checkpoint."
)
app.add_typer(state, name="state")
app.add_typer(statements.group, name="sql")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"asyncstate {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Looks after the checkpoints of asyncstate jobs, without Spark, and runs jobs of SQL statements."""


state.command("list")(inspecting.list_states)
state.command("show")(inspecting.show)
state.command("stats")(inspecting.stats)
state.command("verify")(upkeep.verify)
state.command("rollback")(upkeep.rollback)
state.add_typer(migrating.group, name="migrate")
