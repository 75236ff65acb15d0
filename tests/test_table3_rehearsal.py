"""Table 3 at full scale, rehearsed on noise in ImageNet's layout: its experiment on two processes, and its table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from immunize.records import read_record
from tests.commands import run
from tests.test_deep_run import write_imagenet, write_noisy_cars

METHODS = ("ours", "opt_kappa", "closed_form")
TINY = (
    *("model=resnet18", "model.pretrained=false", "model.image_size=32", "harmful=cars", "seed=0"),
    *("objective.max_steps=2", "objective.batch_size=6", "deep.workers=1", "deep.images=24"),
    *("deep.groups=2", "deep.group_size=6", "deep.replicates=2"),
    "deep.probe_steps={gd:30,least_squares:2,sgd:2,adam:2}",
)


def key_of(path: Path) -> str:
    with safe_open(path, "pt") as file:
        return str(file.metadata()["key"])


@pytest.mark.slow
def test_table_3_on_two_processes_shares_theta_0_and_ends_with_its_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    write_imagenet(tmp_path / "imagenet", rng, 12)
    write_noisy_cars(tmp_path / "stanford_cars", rng, 10)
    two = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", f"data_root={tmp_path}")
    runs, kept = tmp_path / "runs", tmp_path / "features"
    words = ("-m", "experiment=table3", *two, *TINY, f"method={','.join(METHODS)}", f"deep.cache_dir={kept}")
    done = run("immunize.train", *words, f"hydra.sweep.dir={runs}", cwd=tmp_path, timeout=580)
    assert done.returncode == 0, done.stderr[-3000:]
    records = {
        record["method"]: record for record in map(read_record, (path.parent for path in runs.rglob("record.json")))
    }
    assert {path.parent for path in runs.rglob("record.json")} == {path for path in runs.iterdir() if path.is_dir()}
    assert {path.name for path in tmp_path.iterdir()} == {"imagenet", "stanford_cars", "runs", "features"}
    assert {method: record["status"] for method, record in records.items()} == dict.fromkeys(METHODS, "finished")
    assert [records[method]["training"]["fit"].get("processes") for method in METHODS] == [2, 2, None]
    assert records["opt_kappa"]["config"]["trainer"]["gradient_clip_val"] == 3
    for record in records.values():  # 36 images of D_P and 30 of D_H a part, of which 24 are measured
        facts = record["metrics"]["fit"]["spectrum"]["facts"]
        assert [facts[f"kappa_{role}"]["n_samples"] for role in ("pretrain", "harmful")] == [24, 24]
    first = min(path.stat().st_mtime for path in runs.rglob("record.json"))
    shared = [path for path in kept.rglob("*.safetensors") if '"shares": 2' in key_of(path)]
    assert len(shared) == 4  # of two data sets and two parts, made by the first run and not again
    assert all(path.stat().st_mtime < first for path in shared)
    told = run("immunize.report", "experiment=table3", f"runs={runs}", f"out={tmp_path / 'out'}", cwd=tmp_path)
    assert told.returncode == 0, told.stderr[-2000:]
    assert "Comparison with the paper" in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
