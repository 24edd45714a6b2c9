"""The benchmarks' command line: ``python -m bench``.

Owns: the names of the commands. Exit codes: 0 good, 1 a result is wrong (or has become worse), 2 something could not
be run. A benchmark is imported when it is asked for: some need Spark.
"""

from __future__ import annotations

import importlib
from typing import Any

import typer

COMMANDS = {
    "aggregates": "bench.aggregates",
    "backfill": "bench.large_states",
    "checkpoints": "bench.checkpoints.command",
    "compare": "bench.compare",
    "growth": "bench.large_states",
    "kafka-read": "bench.services",
    "latency": "bench.latency.command",
    "lookup": "bench.services",
    "micro": "bench.micro.command",
    "modes": "bench.modes",
    "nexmark": "bench.nexmark.command",
    "paradigms": "bench.paradigms.measure",
    "peers": "bench.peers.command",
    "rules": "bench.rules",
    "sinks": "bench.services",
    "slow-disk": "bench.slowdisk.command",
    "tpch": "bench.tpch.command",
    "two-phase": "bench.twophase",
}
"""By name the module, which has a function of that name."""


class Commands(typer.core.TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        function = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name.replace("-", "_"))
        alone.command(cmd_name)(function)
        return typer.main.get_command(alone)


app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Benchmarks of asyncstate."""


if __name__ == "__main__":
    app()
