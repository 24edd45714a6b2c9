"""``state migrate``: rewrite one state of a stopped job where the program cannot read the stored one.

Owns: the commands of the group and their output. Invariant: nothing is changed before it was confirmed, or if a
value does not fit. Must not import Spark.
"""

from __future__ import annotations

from typing import Annotated

import typer

from asyncstate.cli.inspecting import LocalDir, Place
from asyncstate.cli.output import checked, say
from asyncstate.offline.migration import (
    CastField,
    DropField,
    DropState,
    Migration,
    RenameField,
    RenameState,
    check_migration,
    migrate,
)
from asyncstate.offline.operator_changes import (
    AcceptChange,
    AcceptSink,
    DropOperator,
    OperatorChange,
    RenameOperator,
    change_operator,
)

group = typer.Typer(
    no_args_is_help=True,
    help=(
        "Rewrite one state for a program that cannot read it. Stop the query first: it cannot commit "
        "afterwards."
    ),
)

Operator = Annotated[str, typer.Argument(metavar="UID", help="The operator's uid.")]
State = Annotated[str, typer.Argument(metavar="STATE", help="The state's name.")]
Field = Annotated[
    str, typer.Argument(metavar="FIELD", help="The field; a dotted path for a field inside structs.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@group.command("drop-state")
def drop_state(
    place: Place, uid: Operator, state: State, yes: Yes = False, local_dir: LocalDir = None
) -> None:
    """Forget a state and all its entries; it starts empty when it is declared again."""
    _run(place, uid, state, DropState(), f"Drop all of state '{state}'", yes, local_dir)


@group.command("rename-state")
def rename_state(
    place: Place,
    uid: Operator,
    state: State,
    to: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
    yes: Yes = False,
) -> None:
    """Keep a state under another name."""
    _run(place, uid, state, RenameState(to), f"Rename state '{state}' to '{to}'", yes, None)


@group.command("drop-field")
def drop_field(
    place: Place, uid: Operator, state: State, field: Field, yes: Yes = False, local_dir: LocalDir = None
) -> None:
    """Forget a field of a state's values or rows."""
    _run(place, uid, state, DropField(field), f"Drop field '{field}' of state '{state}'", yes, local_dir)


@group.command("rename-field")
def rename_field(
    place: Place,
    uid: Operator,
    state: State,
    field: Field,
    to: Annotated[str, typer.Argument(metavar="NAME", help="Its new name, without a path.")],
    yes: Yes = False,
    local_dir: LocalDir = None,
) -> None:
    """Keep a field's values under another name."""
    what = f"Rename field '{field}' of state '{state}' to '{to}'"
    _run(place, uid, state, RenameField(field, to), what, yes, local_dir)


@group.command("cast-field")
def cast_field(
    place: Place,
    uid: Operator,
    state: State,
    field: Annotated[
        str,
        typer.Argument(
            metavar="FIELD", help="The field; a dotted path inside structs; 'value' for a plain value."
        ),
    ],
    to: Annotated[
        str,
        typer.Argument(metavar="TYPE", help="A type as `state list` shows it: int32, 'int64 not null', ..."),
    ],
    yes: Yes = False,
    local_dir: LocalDir = None,
) -> None:
    """Give a field another type; refused, with the key, if a value would change."""
    what = f"Cast field '{field}' of state '{state}' to {to}"
    _run(place, uid, state, CastField(field, to), what, yes, local_dir)


DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]


@group.command("rename-operator")
def rename_operator(
    place: Place,
    uid: Operator,
    to: Annotated[str, typer.Argument(metavar="NEW_UID", help="The operator's new uid.")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Keep the state of an operator that has another uid now."""
    _change(place, uid, RenameOperator(to), f"Rename operator '{uid}' to '{to}'", yes, dry_run)


@group.command("drop-operator")
def drop_operator(place: Place, uid: Operator, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Forget an operator with all its state; under the same uid it starts empty."""
    _change(place, uid, DropOperator(), f"Drop operator '{uid}' and all its state", yes, dry_run)


@group.command("accept-change")
def accept_change(place: Place, uid: Operator, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Accept the state as valid after a change of the operator's parameters that is refused."""
    what = f"Accept the state of operator '{uid}' as that of the changed program"
    _change(place, uid, AcceptChange(), what, yes, dry_run)


@group.command("accept-sink")
def accept_sink(
    place: Place,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="The sink's name in the graph.")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Accept what a sink holds as valid after a change of its rows that is refused."""
    _change(place, sink, AcceptSink(), f"Accept what sink '{sink}' holds as correct", yes, dry_run)


def _change(place: str, uid: str, change: OperatorChange, what: str, yes: bool, dry_run: bool) -> None:
    with checked():
        version = change_operator(place, uid, change, dry_run=True)
    if dry_run:
        say(f"{what}: possible in version {version}; nothing was changed.")
        return
    if not yes:
        typer.confirm(f"{what}? Its query must be stopped", abort=True)
    with checked():
        version = change_operator(place, uid, change)
    say(f"{what}: done in version {version}. Older versions are unchanged.")


def _run(
    place: str, uid: str, state: str, change: Migration, what: str, yes: bool, local_dir: str | None
) -> None:
    with checked():
        others = [name for name in check_migration(place, uid, state, change) if name != state]
    if others:
        what += f" and of '{others[0]}', which belongs to it,"
    if not yes:
        typer.confirm(f"{what} of operator '{uid}'? Its query must be stopped", abort=True)
    with checked():
        done = migrate(place, uid, state, change, local_dir=local_dir)
    say(
        f"{what} of operator '{uid}': done in version {done.version}, {done.entries} entries written. Older "
        "versions are unchanged."
    )
