"""Table 3 on noise in the real layouts: its networks, its experiment at full scale on two processes, and its table."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from immunize import train
from immunize.records import read_record
from tests.commands import run
from tests.composing import compose_config
from tests.data.image_files import WNIDS, write_cars, write_noise, write_noisy_classes


def write_imagenet(root: Path, rng: np.random.Generator, count: int) -> None:
    write_noisy_classes(root, {"train": count, "val": count}, dict.fromkeys(WNIDS, (0, 256)), rng)


def write_noisy_cars(root: Path, rng: np.random.Generator, count: int) -> None:
    labels = dict.fromkeys(("train", "test"), [1, 2, 3] * count)
    write_cars(root, labels)
    for split, of in labels.items():
        for number in range(len(of)):
            write_noise(root / f"cars_{split}" / f"{number + 1:05d}.jpg", rng)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "harmful"), [("resnet18", "cars"), ("vit", "country211")])
def test_table_3_runs_on_generated_images(model: str, harmful: str, tmp_path: Path) -> None:
    """Narrow, on few images, 64 pixels wide, in small groups; IMMUNIZE_FULL=1: as shipped, enough for groups of 100."""
    rng = np.random.default_rng(0)
    full = os.environ.get("IMMUNIZE_FULL") == "1"
    write_imagenet(tmp_path / "imagenet", rng, 34 if full else 2)
    if harmful == "cars":
        write_noisy_cars(tmp_path / "stanford_cars", rng, 34 if full else 2)
    else:
        most = 52 if full else 3
        counts = {"train": most, "valid": 1, "test": most}
        write_noisy_classes(tmp_path / "country211", counts, dict.fromkeys(("AD", "AE"), (0, 256)), rng)
    narrow, width = {
        "resnet18": (("channels=[4,8,8,12]",), 512 if full else 12),
        "vit": (("embed_dim=24", "num_heads=2"), 768 if full else 24),
    }[model]
    less = (
        *("objective.batch_size=4", "deep.groups=2", "deep.group_size=6", "deep.replicates=2"),
        *("deep.probe_steps={gd:2,least_squares:2,sgd:2,adam:2}", "model.image_size=64"),
        *(f"+model.kwargs.{of}" for of in narrow),
    )
    cfg = compose_config(
        f"model={model}", f"harmful={harmful}", "model.pretrained=false", f"data_root={tmp_path}",
        "objective.max_steps=2", "logger=none", *(() if full else less),
    )  # fmt: skip
    record = train.run(cfg, tmp_path / "run", quiet=True)
    assert (record["pretrain"], record["network"]["features"]) == ("imagenet", width)
    assert record["metrics_groups"]["held_out"]["spectrum"]["rir"] > 0
    table_4 = {"resnet18": (5e-5, 2e6, 3), "vit": (1e-6, 1e8, 2)}[model]
    objective = record["config"]["objective"]
    assert (objective["lambda_well"], objective["lambda_ill"], objective["epochs"]) == table_4
    prefix = "layer4" if model == "resnet18" else "blocks.11"
    assert all(name.startswith(prefix) for name in record["network"]["trained"])


METHODS = ("ours", "opt_kappa")
TINY = (
    *("model=resnet18", "model.pretrained=false", "+model.kwargs.channels=[4,8,8,12]", "model.image_size=32"),
    *("harmful=cars", "seed=0", "objective.max_steps=2", "objective.batch_size=6", "objective.learning_rate=1e-12"),
    *("deep.workers=1", "deep.images=24"),
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
    assert [records[method]["training"]["fit"]["processes"] for method in METHODS] == [2, 2]
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
