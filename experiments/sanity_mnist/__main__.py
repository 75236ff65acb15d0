"""`make sanity`: one MNIST pair, the three checks of docs/sanity_check.md, from the run's record alone.

What is committed beside this file is record.json, norm_ratio.png, table.md, and warnings.md: what the commands that the
document gives for each failure signature print.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.readme_tables import ROOT

HERE = Path(__file__).parent
DOCUMENT = ROOT / "docs" / "sanity_check.md"
FOLDER = "outputs/sanity_mnist"
COMMAND = ["-m", "immunize.train", "harmful=mnist", "harmful.pair=[0,1]"]
PARTS = ("fit", "held_out")
EXACT = 1e-9
"""A best possible loss below this share of the targets' mean square is zero up to rounding."""


def main() -> None:
    """Train, keep record and figure, provoke the warnings, and rewrite the tables."""
    if done := subprocess.run([sys.executable, *COMMAND, *_into(FOLDER)], check=False).returncode:
        sys.exit(done)
    for name in ("record.json", "norm_ratio.png"):
        shutil.copy(Path(FOLDER) / name, HERE / name)
    record = json.loads((HERE / "record.json").read_text(encoding="utf-8"))
    (HERE / "table.md").write_text(table(record), encoding="utf-8")
    said = [_said(name, arguments) for name, arguments in provoking()]
    (HERE / "warnings.md").write_text("".join(said), encoding="utf-8")


def provoking() -> list[tuple[str, list[str]]]:
    """Each signature's name with the arguments of the first command below its heading in the document."""
    sections = re.findall(r"^### `(\w+)`\n(.*?)(?=^##)", DOCUMENT.read_text(encoding="utf-8"), re.M | re.S)
    commands = [(name, re.search(r"^python (-m immunize\.train .*)$", text, re.M)) for name, text in sections]
    return [(name, shlex.split(found[1])) for name, found in commands if found]


def _said(name: str, arguments: list[str]) -> str:
    """Markdown: the lines that a command prints with this name."""
    command = [sys.executable, *arguments, *_into("outputs/sanity_warnings"), "probe_steps=100"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    lines = [line.removeprefix("[WARNING] ") for line in done.stderr.splitlines() if f": {name}: " in line]
    return "".join(f"- {line}\n" for line in lines)


def _into(folder: str) -> list[str]:
    return ["logger=none", "overwrite=true", f"hydra.run.dir={folder}"]


def table(record: dict[str, Any]) -> str:
    """Markdown: every check, on the images θ was fitted on and on images it never saw.

    Args:
        record: of the run, with its curves.
    """
    rows = [["check", "number", *(part.replace("_", " ") for part in PARTS)], ["---"] * 4]
    for estimator in record["metrics"]["fit"]:
        values = (record["metrics"][part][estimator]["rir"] for part in PARTS)
        rows.append(["RIR > 1", f"RIR, `{estimator}`", *(f"{value:.3g}" for value in values)])
    for role, check in (("harmful", "D_H is learned more slowly"), ("pretrain", "D_P is learned no more slowly")):
        for words, number in (
            ("steps to norm ratio 0.1", lambda part, role, which: _steps(record, part, role, which)),
            (f"norm ratio after {record['config']['probe_steps']:,} steps", _last_ratio(record)),
        ):
            cells = (f"{number(part, role, 'identity')} → {number(part, role, 'immunized')}" for part in PARTS)
            rows.append([check, f"{words}, raw data → θ", *cells])
    for verdict in "abc":
        rows.append([f"({verdict}) of Definition 3.1", "`spectrum`" if verdict != "c" else "best linear probe"])
        rows[-1] += [_verdict(of, verdict) for of in (record["verdicts"], record["verdicts"]["held_out"])]
    hardware = record["hardware"]
    made = (
        f"`{record['command']}`, {record['started'][:10]}, {hardware['processor']}, {hardware['cores']} cores, "
        f"{hardware['threads']} threads: {record['seconds']:.0f} s, {record['training']['fit']['steps']} steps."
    )
    warned = sorted({warning["name"] for warning in record["training"]["fit"]["warnings"]})
    said = f"Warnings: {', '.join(f'`{name}`' for name in warned) or 'none'}."
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n\n{made} {said}\n"


def _steps(record: dict[str, Any], part: str, role: str, which: str) -> str:
    value = record["steps_to_norm_ratio"][part][role][which]["0.1"]
    return f"> {record['config']['probe_steps']:,}" if value is None else f"{value:,}"


def _last_ratio(record: dict[str, Any]) -> Any:
    curves = record["curves"]["norm_ratio"]
    return lambda part, role, which: f"{curves[part][role][which]['ratio'][-1]:.2g}"


def _verdict(of: dict[str, Any], name: str) -> str:
    losses = f"loss {of['loss_immunized']:.3g}, best possible {of['loss_plain']:.3g}"
    if of["loss_plain"] <= EXACT * of["loss_zero"]:
        losses = "any features fit these targets exactly"
    words = {"a": f"(i) = {of['ratio_harmful']:.3g}", "b": f"(ii) = {of['ratio_pretrain']:.3g}", "c": losses}
    return f"{'yes' if of[name] else 'no'}, {words[name]}"


if __name__ == "__main__":
    main()
