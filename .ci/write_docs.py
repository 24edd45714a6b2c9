"""Write the pages of `docs/` that are made from the code; with `--check`, only say which are out of step.

Owns: `docs/configuration.md`. Invariant: what it writes depends on the code alone, not on the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from asyncstate.config import OPTIONS, default_text

DOCS = Path(__file__).resolve().parents[1] / "docs"

CONFIGURATION_HEAD = """\
# Configuration

<!-- Written by `make docs` from asyncstate/config.py; edit that instead. -->

The driver resolves the configuration once and sends it, frozen, to the tasks. For each key, the first of
these that is set counts:

1. the operator's own option, `options={"async-state.enabled": "true"}`;
2. the Spark session: `spark.async-state.enabled`, or `async-state.enabled` without the prefix. Both at once
   must say the same, or the job refuses to start;
3. the default.

`spark-submit --conf` and `spark-defaults.conf` drop keys that do not start with `spark.`, so write
`spark.async-state.enabled=true` there. `spark.conf.set` and `SparkSession.builder.config` keep both
spellings.

Unknown `async-state.*` keys and values out of range are errors, before any data is touched. Sizes and
durations need a unit in a text (`64mb`, `500ms`; 1 kb is 1024 bytes); a Python int is in bytes or
milliseconds. A duration may also be written out (`10 minutes`, `1 hour 30 minutes`), or be a `timedelta`.

| Key | Default | Takes | Meaning |
|---|---|---|---|
"""


def configuration_page() -> str:
    """The page on the configuration keys: how they are resolved, then a table row for each."""
    rows = [
        f"| `{option.key}` | {default_text(name)} | {option.kind.accepts} | {option.doc} |\n"
        for name, option in OPTIONS.items()
    ]
    return CONFIGURATION_HEAD + "".join(rows)


def main(arguments: list[str]) -> int:
    pages = {DOCS / "configuration.md": configuration_page()}
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path} is out of step with the code; run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages[path], "utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
