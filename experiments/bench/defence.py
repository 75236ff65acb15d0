"""What a defence of a ResNet18 costs: Caltech-101 against Tiny ImageNet at 64 px, runs of defaults in fresh processes.

    censor    from start to exit                                                  at most 10 minutes
    erase     from features to the map and the classifier behind it               at most 2 s

Writes defence.csv; needs the images and the network's weights in IMMUNIZE_DATA.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.bench.machine import show, write_csv
from experiments.bench.mnist import measure

CASES: dict[str, tuple[str, str, float]] = {  # method: what is limited, in words; its column; seconds
    "censor": ("start to exit", "seconds", 600.0),
    "erase": ("from features to map and classifier", "training_s", 2.0),
}
RUN = ("model=resnet18_64px", "harmful=caltech101", "pretrain=tiny_imagenet", "seed=0")


def run(out: Path) -> None:
    """Measure both, print and write.

    Args:
        out: the folder of results.

    Raises:
        UserError: a run failed, as without the images.
    """
    kept = ("seconds", "work_s", "training_s", "evaluation_s", "steps", "peak_gb", "threads")
    rows: list[dict[str, Any]] = []
    for method, (_, _, limit) in CASES.items():
        found = measure([*RUN, f"method={method}"])
        rows.append({"method": method, **{name: found[name] for name in kept}, "limit_s": limit})
    write_csv(out / "defence.csv", rows)
    show("a defence of a ResNet18", rows)
