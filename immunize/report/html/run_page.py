"""The page of one run, from its record and what lies beside it: attack record and training log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from immunize.errors import UserError
from immunize.records import ATTACK_CELLS, ATTACK_RECORD
from immunize.report.each_set import each_set, sets_table, weakest_told
from immunize.report.html.attack import attack_section
from immunize.report.html.elements import Html, coded, join, tag
from immunize.report.html.page import REDUCED, Section, page, write_page
from immunize.report.html.ratios import ratios_section
from immunize.report.html.run_figures import (
    norm_ratio_section,
    probe_section,
    read_log,
    spectra_section,
    training_section,
)
from immunize.report.html.tables import from_layout, key_values
from immunize.report.html.verdicts import verdicts_section
from immunize.report.naming import data_name, run_title
from immunize.report.provenance import provenance_rows
from immunize.report.reading import lacking_is_told
from immunize.report.runs import Runs, experiment_of
from immunize.report.sources import check_same_run, read_attack, read_run

__all__ = ["REPORT", "run_page", "write_run_page"]

REPORT = "report.html"

_NOT_OF_ONE_RUN = ("runs", "methods", "seeds")


def write_run_page(folder: Path, out: Path) -> Path:
    """Write `report.html` of the run in `folder` into `out`, and return its path.

    Raises:
        UserError: no record, or one that cannot be read or lacks what every record has.
    """
    record, log = read_run(folder), read_log(folder)
    with lacking_is_told(f"the record in {folder}"):
        attack, problem = _attack_of(folder, record)
        if attack is not None:
            try:
                return write_page(run_page(record, attack, log), out / REPORT)
            except KeyError as error:
                problem = f"{ATTACK_RECORD} lacks {error}: it is of another version."
        return write_page(run_page(record, None, log, problem), out / REPORT)


def run_page(
    record: dict[str, Any],
    attack: dict[str, Any] | None,
    log: dict[str, tuple[list[float], list[float]]] | None,
    attack_problem: str | None = None,
) -> str:
    """The document.

    Args:
        record: of `immunize.train`, finished or not.
        attack: of `immunize.attack` on that run; None leaves the attacks out, and the page says so.
        log: of the training, see :func:`immunize.report.html.run_figures.read_log`.
        attack_problem: why an attack record that is there is not shown.

    Raises:
        KeyError: a record without what every record has.
    """
    sections = [verdicts_section(record, attack)]
    measured = bool(record.get("metrics"))
    if measured:
        sections.append(ratios_section(record))
        if (sets := each_set(record)) is not None:
            sections.append(Section("each-set", "Each harmful data set", from_layout(sets_table(sets))))
    sections.append(training_section(log, record))
    if measured:
        sections.append(spectra_section(record))
        sections += [s for s in (norm_ratio_section(record), probe_section(record)) if s is not None]
        sections.append(attack_section(attack, attack_problem))
    sections.append(_provenance(record, attack))
    return page(run_title(record), _lead(record), sections)


def _attack_of(folder: Path, record: dict[str, Any]) -> tuple[dict[str, Any] | None, str | None]:
    """The attack record, or None and why it is not shown: the page of a run does not depend on its attackers."""
    try:
        attack = read_attack(folder)
        if attack is not None:
            check_same_run(record, attack)
        elif (folder / ATTACK_CELLS).is_dir():
            return None, "An attack on this run was begun and has not ended; the same command goes on where it stopped."
    except UserError as error:  # a run that was done again leaves the attacks on the one before
        return None, f"{error}.".removeprefix(f"{folder}/")
    except KeyError as error:
        return None, f"{ATTACK_RECORD} lacks {error}: it is of another version."
    return attack, None


def _lead(record: dict[str, Any]) -> Html:
    reduced = experiment_of(record)[1]
    sides = [
        join([tag("strong", name), f" {data_name(record, role)}, {record['data'][role]['task']}"])
        for name, role in (("D_P", "pretrain"), ("D_H", "harmful"))
    ]
    network = (record.get("network") or {}).get("architecture")
    model = record["model"] if network in (None, record["model"]) else f"{record['model']} ({network})"
    return join(
        [
            tag("p", REDUCED, class_="banner") if reduced else None,
            tag(
                "p",
                tag("strong", record["status"], class_="pass" if record["status"] == "finished" else "open"),
                " ",
                tag("code", model),
                " immunized by ",
                tag("code", record["method"]),
                ", for ",
                sides[0],
                ", against ",
                sides[1],
                ".",
            ),
            None if (sets := each_set(record)) is None else tag("p", coded(weakest_told(sets))),
        ]
    )


def _provenance(record: dict[str, Any], attack: dict[str, Any] | None) -> Section:
    rows = provenance_rows(Runs((record,), *experiment_of(record), ()))
    facts = [("config hash", f"`{record['config_hash']}`"), ("seed", str(record["seed"]))]
    facts += [(name, text) for name, text in rows if name not in _NOT_OF_ONE_RUN]
    facts.append(("record", f"schema version {record.get('schema_version')}"))
    commands = [record["command"]]
    if attack is not None:
        facts.append(("checkpoint", f"SHA-256 `{attack['subject']['checkpoint_sha256']}`"))
        commands.append(attack["command"])
    else:
        commands.append("python -m immunize.attack run=<this folder>")
    commands.append("python -m immunize.verify run=<this folder>")
    config = json.dumps(record["config"], indent=1, ensure_ascii=False)
    content = join(
        [
            key_values(facts),
            tag("h3", "Reproduce"),
            tag("pre", tag("code", "\n".join(commands)), tabindex="0"),
            tag("details", tag("summary", "The whole configuration"), tag("pre", tag("code", config), tabindex="0")),
        ]
    )
    return Section("provenance", "Provenance", content)
