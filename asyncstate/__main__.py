"""``asyncstate``, or ``python -m asyncstate``: see ``asyncstate.cli``. Needs the extra ``cli``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exit code 2 with a hint where its packages are missing."""
    try:
        from asyncstate.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"asyncstate needs the package {error.name}; install asyncstate[cli]")
    app()


if __name__ == "__main__":
    main()
