"""The immunization card of a run: what was done, how far it holds, and against whom it does not, from records alone.

`card.json` holds the numbers, `CARD.md` the same in words. `python -m immunize.verify` recomputes the records and then
the card from them. Imports no other room and no torch.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from immunize.errors import UserError
from immunize.records import CARD_JSON, CARD_MD, diverged_cross_fit
from immunize.report import loading
from immunize.report.attacks.one_run import grid_parts, not_tried, verdict_sentence
from immunize.report.loading import verdict_on, with_infinities
from immunize.report.naming import RATIO_NAMES, RATIOS, data_name, fit_rows, run_title
from immunize.report.one_run import aims_at_kappa, carried_over, each_set, separability_lines, sets_shown
from immunize.report.provenance import machine_name
from immunize.report.runs import theta_0_of
from immunize.report.templates import asset, filled_in
from immunize.report.writing import write_report

CARD_VERSION = 1

_OF_A_TIER = ("held", "difference", "retention", "best", "diverged")
_VERSIONS = ("python", "immunize", "torch", "numpy", "scipy", "scikit-learn")


def card_of(record: dict[str, Any], attack: dict[str, Any] | None) -> dict[str, Any]:
    """Every number of the card.

    Args:
        record: of `immunize.train`, finished.
        attack: of `immunize.attack` on that same run; None leaves the attacks out, and the card says so.

    Raises:
        UserError: a run that did not finish.
    """
    if record.get("status") != "finished":
        raise UserError(f"the run is '{record.get('status')}': a card needs a finished one")
    parts = [part for part in record["metrics"] if part != "validation"]
    again = [] if attack is None else [attack["command"]]
    kind = "deep" if "metrics_groups" in record else "linear"
    return {
        "card_version": CARD_VERSION,
        "title": run_title(record),
        **{name: record[name] for name in ("method", "model", "seed")},
        "data": {
            role: {"name": data_name(record, role), "task": facts["task"], "rows": fit_rows(facts)}
            for role in ("pretrain", "harmful")
            for facts in [record["data"][role]]
        },
        "held_out_protocol": record["held_out_protocol"],
        **({} if (lost := diverged_cross_fit(record)) is None else {"no_held_out": lost}),
        "ratios": {part: _ratios(record["metrics"][part]) for part in parts},
        **_of_networks(record, parts),
        **({} if (sets := each_set(record)) is None else {"harmful_sets": sets}),
        "definition_3_1": {
            "estimator": record["verdicts"]["estimator"],
            **{part: {name: (verdict_on(record, part) or {})[name] for name in "abc"} for part in parts},
        },
        "aims_at_kappa": aims_at_kappa(record),
        "separability": carried_over(record, parts),
        "attack": None if attack is None else _attack(attack),
        "threat_model": threat_model(kind, record["config"]["method"]["_target_"]),
        "provenance": {
            **{name: record[name] for name in ("config_hash", "data_hash")},
            "checkpoint_sha256": None if attack is None else attack["subject"]["checkpoint_sha256"],
            **({} if (start := theta_0_of(record)) is None else {"theta_0_sha256": start}),
            **_made_with(record),
        },
        "reproduce": list(dict.fromkeys([record["command"], *again, "python -m immunize.verify run=<this folder>"])),
    }


def card_text(card: dict[str, Any], attack: dict[str, Any] | None) -> str:
    """The card in Markdown.

    Args:
        card: from :func:`card_of`.
        attack: the attack record it was made from, if any.
    """
    return filled_in(
        CARD_MD,
        *(front_matter, separability_lines, sets_shown),
        card=card,
        **({} if attack is None else grid_parts(attack)),
    )


def write_card(folder: Path, out: Path) -> Path:
    """Write `card.json` and `CARD.md` of the run in `folder` into `out`, and return the latter's path.

    Raises:
        UserError: no record, one that cannot be read, or records that do not go together.
    """
    with loading.lacking_is_told(f"the record or attack record in {folder}"):
        record, attack = loading.read_sources(folder)
        if attack is not None:
            loading.check_same_checkpoint(folder, attack)
        card = card_of(record, attack)
        text = card_text(card, attack)
    write_report(out, {CARD_JSON: json.dumps(card, indent=1, ensure_ascii=False) + "\n", CARD_MD: text})
    return out / CARD_MD


def _of_networks(record: dict[str, Any], parts: list[str]) -> dict[str, Any]:
    """What a linear model does not have: the paper's 20 groups of 100 (§5.2), and the network's own accuracy on D_P."""
    if "metrics_groups" not in record:
        return {}
    deep, groups = record["config"]["deep"], record["metrics_groups"]
    return {
        "groups": {"count": deep["groups"], "size": deep["group_size"]},
        "ratios_groups": {part: _ratios(groups[part]) for part in parts},
        "pretrain_accuracy": dict(record["pretrain_accuracy"]),
    }


def _ratios(estimators: dict[str, Any]) -> dict[str, Any]:
    return {estimator: {name: of[name] for name in RATIOS} for estimator, of in estimators.items()}


def _attack(attack: dict[str, Any]) -> dict[str, Any]:
    """What the card keeps of the grid: no seconds, which are another machine's elsewhere."""
    config = attack["config"]
    tasks: dict[str, Any] = {}
    for task, facts in attack["tasks"].items():
        of = attack["results"][task]["immunized"]
        verdict = attack["verdicts"][task]["immunized"]
        long = {
            name: [one and {key: value for key, value in one.items() if key != "curve"} for one in of["horizon"]]
            for name, of in attack["attacks"][task]["immunized"].items()
            if "horizon" in of
        }
        tasks[task] = {
            **{name: facts[name] for name in ("kind", "about", "rows", "rows_moved") if name in facts},
            **{name: verdict[name] for name in ("highest_tier", "unbroken_up_to", "first_broken", "held")},
            "tiers": {
                tier: {
                    "score": found["score"],
                    "score_theta_0": found["score_reference"],
                    "steps": found["to_target"]["steps"],
                    "steps_theta_0": found["to_target_reference"]["steps"],
                    "flops": found["to_target"]["flops"],
                    **{name: found[name] for name in _OF_A_TIER if name in found},
                }
                for tier, found in of.items()
            },
            **({"horizons": long} if long else {}),
        }
    return {
        **_made_with(attack),
        "grid": config["attack"]["name"],
        "reduced": config["attack"]["reduced"],
        "budget": config["attack"]["budget"],
        "seeds": config["seeds"],
        "control": attack["control"],
        "tasks": tasks,
        "not_tried": not_tried(attack),
        "sentences": {task: verdict_sentence(attack, task) for task in tasks},
    }


def _made_with(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "git_commit": record.get("git_commit"),
        "versions": {name: record["versions"].get(name) for name in _VERSIONS},
        "machine": machine_name(record["hardware"]),
        "threads": record["hardware"]["threads"],
    }


def front_matter(card: dict[str, Any]) -> str:
    """What hubs of models read of a card: YAML.

    What the model itself is measured by, and of each tier of attackers the best score on the harmful task where some
    were tried in earnest.

    Args:
        card: from `immunize.report.card.card_of`.
    """
    data, attack = card["data"], card["attack"]
    part = "held_out" if "held_out" in card["ratios"] else "fit"
    own = {
        f"{name} by {estimator}, {part}": with_infinities(of)[key]
        for estimator, of in card["ratios"][part].items()
        for key, name in RATIO_NAMES.items()
    }
    measures = [("relative-immunization-ratio", own)]
    if "pretrain_accuracy" in card:
        measures.append(("accuracy", {"accuracy on D_P, %": card["pretrain_accuracy"]["after"]}))
    results = [_result(card, "pretrain", "its own task, D_P", measures)]
    if attack is not None and not attack["reduced"]:
        kind = "r_squared" if data["harmful"]["task"] == "regression" else "accuracy"
        tiers = attack["tasks"]["harmful"]["tiers"].items()
        best = {f"best attacker of {tier}, the lower the better": of["score"]["mean"] for tier, of in tiers}
        results.append(_result(card, "harmful", "the harmful task, D_H", [(kind, best)]))
    head = {
        "library_name": "immunize",
        "tags": ["model-immunization", card["method"], card["model"]],
        "datasets": list(dict.fromkeys(_slug(data[role]["name"]) for role in ("pretrain", "harmful"))),
        "metrics": [kind for kind, _ in measures],
        "model-index": [{"name": card["title"], "results": results}],
    }
    return OmegaConf.to_yaml(OmegaConf.create(head)).rstrip("\n")


def _result(card: dict[str, Any], role: str, name: str, measures: list[tuple[str, Any]]) -> dict[str, Any]:
    data = card["data"][role]
    rows = "tabular-regression" if data["task"] == "regression" else "tabular-classification"
    return {
        "task": {"type": "image-classification" if "groups" in card else rows, "name": name},
        "dataset": {"type": _slug(data["name"]), "name": data["name"]},
        "metrics": [
            {"type": kind, "name": of, "value": _number(value)}
            for kind, found in measures
            for of, value in found.items()
        ],
    }


def _number(value: float | None) -> float | str:
    """As text where it is none: hubs refuse it."""
    return str(value) if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _slug(name: str) -> str:
    return re.sub(r"[^\w.]+", "-", name.lower()).strip("-")


def threat_model(kind: str, target: str) -> list[str]:
    """Sentences.

    Args:
        kind: of the model, "linear" or "deep".
        target: the method's class, by its module and name; what `method.name` says is the user's.
    """
    said: Any = OmegaConf.to_object(OmegaConf.create(asset("threat_model.yaml")))
    own = said.get(target.removeprefix("immunize.objective.").partition(".")[0], said["others"])
    return [said["access"], own["promise"], own[kind], said["silence"]]
