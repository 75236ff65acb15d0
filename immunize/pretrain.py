"""`python -m immunize.pretrain`: train a network on D_P, a θ_0 of one's own, which `model.checkpoint=` takes.

`main` only parses; :func:`run` does the work and returns the record.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig, OmegaConf

from immunize.building import build
from immunize.cli import entry_point, explain_errors, sigint_restored, teller
from immunize.config import PretrainConfig, config_dir, config_hash, register, resolved
from immunize.effects import apart, asked_for, idle_in_pretraining, refuse_idle
from immunize.errors import DivergedError, UserError
from immunize.processes import process_count, started_outside
from immunize.records import CHECKPOINT, RECORD, SCHEMA_VERSION, peak_memory_mib, provenance, write_record
from immunize.settings import LARGEST_SEED, Rule, check_folder, check_rules, check_schema, refuse_finished
from immunize.sweeping import done_record
from immunize.threads import cpu_threads, threads_in_force

if TYPE_CHECKING:
    from torch import nn

    from immunize.data.images import ImageSource, ImageSplits
    from immunize.features import DeepExtractor
    from immunize.running.deep_fit import DeepFit

__all__ = ["main", "run"]

ALL_OF_IT = {"trainable": ["*"]}
"""What of θ_0 may change is a setting of immunization; here it is made."""

FROM_SCRATCH = {**ALL_OF_IT, "pretrained": False, "checkpoint": None, "fresh_head": False}
"""The same where no new head is put on a network that is there: the weights are random."""

RULES: tuple[Rule, ...] = (
    ("seed", lambda value: 0 <= value <= LARGEST_SEED, f"between 0 and {LARGEST_SEED}"),
    ("epochs", lambda value: value >= 1, "at least 1"),
    ("batch_size", lambda value: value >= 1, "at least 1"),
    ("learning_rate", lambda value: 0 < value < math.inf, "positive and finite"),
    ("weight_decay", lambda value: 0 <= value < math.inf, "a finite number ≥ 0"),
    ("label_smoothing", lambda value: 0 <= value < 1, "in [0, 1)"),
    ("validation_fraction", lambda value: 0 <= value <= 0.9, "between 0 and 0.9"),
    ("workers", lambda value: value >= 0, "at least 0"),
    ("threads", lambda value: value is None or value >= 1, "at least 1, or null"),
)


def run(cfg: DictConfig, folder: Path, *, quiet: bool = False, given: Sequence[str] = ()) -> dict[str, Any]:
    """Train from random weights, or from the model's own under a new head, and write record and checkpoint.

    The latter with `model.fresh_head=true`. The files are `record.json` and `checkpoint.safetensors` in `folder`. An
    interrupted training goes on with `resume=true`, to the weights of one that was never interrupted.

    Args:
        cfg: the composed configuration (`conf/pretrain_theta.yaml`).
        folder: the output folder.
        quiet: show no progress.
        given: settings that somebody has asked for, which have to have an effect.

    Returns:
        The record, as written: with `accuracy`, top-1 on held-out images, percent, if the training finished; with
        `resume`, the one that is there if it needs no repeating.

    Raises:
        UserError: anything in the configuration or the data that the user has to mend.
        SystemExit: SIGTERM; what was trained so far is kept for `resume=true`.
    """
    if OmegaConf.is_missing(cfg.model, "trainable"):  # model=timm has no default
        cfg = DictConfig(OmegaConf.merge(cfg, {"model": ALL_OF_IT}))
    _check(cfg)
    from immunize.data.images import as_image_source

    source = as_image_source(build(cfg.pretrain))
    source.require()
    whole = resolved(cfg)
    hashed = config_hash(whole)
    if cfg.resume and not cfg.overwrite and (done := done_record(folder, hashed)) is not None:
        return done
    idle = idle_in_pretraining(whole)
    refuse_idle(given, idle)
    config, without_effect = apart(whole, idle)
    refuse_finished(folder, cfg.overwrite)
    check_folder(folder)
    say = teller(quiet)
    say(f"{cfg.model.name} on {source.name}, seed {cfg.seed}: loading")
    from lightning.pytorch import seed_everything

    from immunize.features import save_weights
    from immunize.running.deep_fit import TRAINING

    clock = time.perf_counter()
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "status": "started",
        "model": cfg.model.name,
        "pretrain": source.name,
        "seed": cfg.seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "config": config,
        "without_effect": without_effect,
        "config_hash": hashed,
    }
    seed_everything(cfg.seed, workers=True, verbose=False)
    with cpu_threads(threads_in_force(cfg.threads)):
        record |= provenance()
        network, splits, record["network"] = _parts(cfg, source)
        begins = f"{hashed} {record['network']['theta_0_sha256']}"
        with sigint_restored():
            fit = _fit(cfg, network, splits, folder / TRAINING, begins, quiet=quiet)
        record.update(status=fit.status, data=source.describe(), data_hash=source.file_hash(), steps=fit.steps)
        if fit.status == "finished":
            say("measuring")
            record["accuracy"] = _accuracy(network, splits, cfg)
    record["training"] = {"seconds": fit.seconds, **fit.facts}
    record |= {"seconds": time.perf_counter() - clock, "peak_memory_mib": peak_memory_mib()}
    save_weights(folder / CHECKPOINT, network.state_dict(), {"config_hash": hashed})
    write_record(folder, record)
    if fit.signal:
        raise SystemExit(128 + fit.signal)
    if fit.status == "finished":
        (folder / TRAINING).unlink(missing_ok=True)
    return record


def _check(cfg: DictConfig) -> None:
    check_schema(cfg, PretrainConfig)
    if cfg.model.get("kind") != "deep":
        raise UserError(f"model={cfg.model.name} is no network; choose a deep one, such as model=resnet_small")
    check_rules(cfg, RULES)
    if process_count(cfg.trainer) > 1 or started_outside():
        raise UserError("θ_0 is trained in one process: choose trainer=cpu or trainer=gpu with trainer.devices=1")
    OmegaConf.to_container(
        OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "model"]), resolve=True, throw_on_missing=True
    )


def _parts(cfg: DictConfig, source: ImageSource) -> tuple[nn.Module, ImageSplits, dict[str, str | None]]:
    """The network as it begins, every weight of it trainable, the images as it wants them, and what it begins with."""
    from immunize.data.images.validation import set_aside
    from immunize.running.assembling import arguments_of
    from immunize.running.deep_assembling import theta_0_facts

    own = ALL_OF_IT if cfg.model.get("fresh_head") else FROM_SCRATCH
    node = OmegaConf.merge(cfg.model, {key: value for key, value in own.items() if key in cfg.model})
    assert isinstance(node, DictConfig)
    net: DeepExtractor = build(arguments_of(node), n_classes=source.n_classes, seed=cfg.seed)
    facts = theta_0_facts(OmegaConf.create({"model": node}), net)
    splits = source.splits(net.transform(train=cfg.augment), net.transform())
    if cfg.validation_fraction > 0:
        splits, _ = set_aside(splits, cfg.validation_fraction, seed=cfg.seed, role="pretrain")
    return net.network, splits, facts


def _fit(
    cfg: DictConfig, network: nn.Module, splits: ImageSplits, checkpoint: Path, run_hash: str, *, quiet: bool
) -> DeepFit:
    """Train in place, from where the checkpoint says if the training is to go on; the network is on its device then."""
    import logging

    from immunize.data.images.sampling import StreamSampler, stream_loader
    from immunize.objective import task_loss
    from immunize.running.deep_fit import DeepFit, signal_behind
    from immunize.running.experiment import quiet_lightning
    from immunize.training.callbacks import Resuming, Throughput, place_in
    from immunize.training.supervised import SupervisedModule

    batches = max(1, len(splits.fit) // cfg.batch_size)
    sampler = StreamSampler(len(splits.fit), cfg.batch_size, batches, seed=cfg.seed, stream=0)
    place = place_in(checkpoint, run_hash) if cfg.resume and not cfg.overwrite else None
    if place is not None:
        sampler.leave_out(*place)
    module = SupervisedModule(
        network.train(),
        task_loss("ce", cfg.label_smoothing),
        learning_rate=cfg.learning_rate,
        weight_decay=cfg.weight_decay,
        steps=cfg.epochs * batches,
    )
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    throughput = Throughput("pre-training", quiet=quiet)
    trainer = build(
        cfg.trainer,
        max_epochs=cfg.epochs,
        gradient_clip_val=cfg.clip,
        callbacks=[throughput, Resuming(checkpoint, run_hash)],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    fit, started = DeepFit("finished", 0.0, 0), time.perf_counter()
    loader = stream_loader(splits.fit, sampler, workers=cfg.workers)
    try:
        with quiet_lightning():
            trainer.fit(module, loader, ckpt_path=None if place is None else str(checkpoint))
    except DivergedError as error:
        raise UserError(f"{error}; lower learning_rate") from error
    except (KeyboardInterrupt, SystemExit) as error:
        fit.status, fit.signal = "interrupted", signal_behind(error)
    fit.seconds, fit.steps = time.perf_counter() - started, trainer.global_step
    fit.facts = {"resumed": None if place is None else {"epoch": place[0], "step": place[1]}} | throughput.facts()
    network.to(trainer.strategy.root_device).eval()
    return fit


def _accuracy(network: nn.Module, splits: ImageSplits, cfg: DictConfig) -> float:
    from immunize.features import extract
    from immunize.features.extract import device_of

    dtype = next(network.parameters()).dtype  # the trainer's precision
    logits, labels = extract(
        lambda images: network(images.to(dtype)), splits.held_out, workers=cfg.workers, device=device_of(network)
    )
    return 100 * float((logits.argmax(1) == labels).double().mean())


@entry_point
def main() -> None:
    """Entry point of `python -m immunize.pretrain` and `immunize-pretrain`."""
    register()
    _hydra_main()


@hydra.main(version_base="1.3", config_path=config_dir(), config_name="pretrain_theta")
@explain_errors
def _hydra_main(cfg: DictConfig) -> None:
    """Print the accuracy, then the checkpoint's path as the last line of stdout."""
    from hydra.core.hydra_config import HydraConfig

    folder = Path(HydraConfig.get().runtime.output_dir)
    record = run(cfg, folder, given=asked_for())
    if record["status"] != "finished":
        raise KeyboardInterrupt
    print(f"{record['model']} on {record['pretrain']}: {record['accuracy']:.2f} % top-1 on held-out images")
    print(f"record: {folder / RECORD}")
    print(folder / CHECKPOINT, flush=True)


if __name__ == "__main__":
    main()
