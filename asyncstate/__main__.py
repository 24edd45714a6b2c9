"""``asyncstate``, or ``python -m asyncstate``: see ``asyncstate.cli``. Needs the extra ``cli``."""

from __future__ import annotations

import sys

from asyncstate import __version__


def main() -> None:
    """Run the command line; exit code 2 with a hint if its packages are missing."""
    if sys.argv[1:] == ["--version"]:
        print(f"asyncstate {__version__}")
        return
    try:
        from asyncstate.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("typer", "rich"):
            raise
        print(
            f"The command asyncstate needs the package {missing}, which is not installed; install it with: "
            "pip install 'asyncstate[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        app()
    except OSError as error:
        if error.filename is not None:
            raise
        # Of the output: files of a checkpoint have names, and are said by the commands.
        print(f"The output cannot be written: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
