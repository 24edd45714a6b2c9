"""Simulate lives of jobs: ``python -m tests.simulation --lives 1000 --seed 0``.

Each life is that of a seed. One that goes wrong is made as small as it still goes wrong, and printed.
"""

from __future__ import annotations

import logging
import time
from typing import Annotated

import typer

from tests.simulation.life import problem_of, shrunk
from tests.simulation.story import random_story


def main(
    lives: Annotated[int, typer.Option(help="How many.")] = 1_000,
    seed: Annotated[int, typer.Option(help="The seed of the first one; the others follow it.")] = 0,
    findings: Annotated[int, typer.Option(help="Stop after so many lives that went wrong.")] = 1,
    shrink_seconds: Annotated[float, typer.Option(help="How long to look for a smaller story.")] = 120.0,
) -> None:
    """Run lives, and exit with 1 if one of them went wrong."""
    logging.disable(logging.WARNING)
    started, wrong = time.monotonic(), 0
    for number in range(seed, seed + lives):
        story = random_story(number)
        problem = problem_of(story)
        if problem is not None:
            wrong += 1
            small = shrunk(story, shrink_seconds)
            print(f"seed {number}: {problem}\n  smaller: {problem_of(small)}", flush=True)
            print("\n".join(small.lines()), flush=True)
            if wrong >= findings:
                break
        done = number - seed + 1
        if done % 100 == 0:
            rate = done / (time.monotonic() - started)
            print(f"{done} lives, {wrong} went wrong, {rate:.1f} lives a second", flush=True)
    done = number - seed + 1
    print(f"{done} lives from seed {seed}: {wrong} went wrong, {time.monotonic() - started:,.0f} s")
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
