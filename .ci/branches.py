"""Fails where the tests ran less than 90 % of the branches of a room: `python .ci/branches.py coverage.json room ...`.

The file is coverage.py's JSON report of a run with `--cov-branch`. A room is a folder of `immunize/`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LEAST = 0.9


def shares(report: dict[str, Any], rooms: list[str]) -> dict[str, float]:
    """Of each room, the share of its branches that were run.

    Raises:
        ValueError: a room without branches in the report.
    """
    found = {}
    for room in rooms:
        of = [facts["summary"] for name, facts in report["files"].items() if name.startswith(f"immunize/{room}/")]
        there = sum(summary["num_branches"] for summary in of)
        if not there:
            raise ValueError(f"the report has no branch of immunize/{room}")
        found[room] = sum(summary["covered_branches"] for summary in of) / there
    return found


def main(arguments: list[str]) -> int:
    """Print the shares; the exit code is 1 where one is too small."""
    path, *rooms = arguments
    found = shares(json.loads(Path(path).read_text(encoding="utf-8")), rooms)
    for room, share in found.items():
        print(f"immunize/{room}: {100 * share:.1f} % of the branches are run, {100 * LEAST:.0f} % are asked for")
    return int(any(share < LEAST for share in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
