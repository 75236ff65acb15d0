"""`make house_prices`: every method on House Prices, five seeds, then the table from their records alone.

Runs one after the other; what is committed beside this file is results.jsonl, table.md, norm_ratio.png and README.md.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments import readme_tables
from immunize.report.summary import load_records, write_summary

HERE = Path(__file__).parent
METHODS = "ours,closed_form,ill_only,well_only,imma,opt_kappa,none"
COMMAND = ["-m", "immunize.train", "-m", "harmful=housing", f"method={METHODS}"]
COMMAND += ["seed=0,1,2,3,4", "logger=none"]


def main() -> None:
    """Run the sweep into a scratch folder and write the results here."""
    with tempfile.TemporaryDirectory() as scratch:
        started = time.perf_counter()
        subprocess.run([sys.executable, *COMMAND, f"hydra.sweep.dir={scratch}"], check=True)
        seconds = time.perf_counter() - started
        records = load_records(Path(scratch))
        write_summary(records, HERE)
        shown = next(path for path in sorted(Path(scratch).rglob("record.json")) if _is_shown(path))
        shutil.copy(shown.with_name("norm_ratio.png"), HERE / "norm_ratio.png")
    (HERE / "README.md").write_text(_readme(records, seconds), encoding="utf-8")
    readme_tables.main()


def _is_shown(path: Path) -> bool:
    record = json.loads(path.read_text(encoding="utf-8"))
    return bool(record["method"] == "ours" and record["seed"] == 0)


def _readme(records: list[dict[str, Any]], seconds: float) -> str:
    first = records[0]
    hardware = first["hardware"]
    ours = [r["seconds"] for r in records if r["method"] == "ours"]
    return f"""# House Prices, linear extractor, every method

| | |
| --- | --- |
| command | `python {" ".join(COMMAND)}` (`make house_prices`) |
| commit | {first["git_commit"]} |
| date | {first["started"][:10]} |
| machine | {hardware["processor"]}, {hardware["cores"]} cores, {hardware["memory_gib"]} GiB |
| wall time | {seconds:.0f} s for {len(records)} runs; `ours` {min(ours):.1f} to {max(ours):.1f} s a seed |
| data hash | {first["data_hash"]} |
| selection | λ_P, λ_H, η and steps were chosen for `ours` by its `fit` RIR (conf/objective/linear_housing.yaml); |
| | the other methods use the same values, untuned; `closed_form` needs none (budget chosen on rows set aside) |

`held_out` is cross-fitted: a second extractor, fitted the same way on a random half of each data set, measured on the
other half. `results.jsonl` holds one record a run, without its curves. `norm_ratio.png` is `ours`, seed 0.

{(HERE / "table.md").read_text(encoding="utf-8")}"""


if __name__ == "__main__":
    main()
