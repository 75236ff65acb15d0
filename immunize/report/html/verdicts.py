"""The first part of a page: what Definition 3.1, the attackers and the training's own warnings say of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from immunize.records import diverged_cross_fit
from immunize.report.attacks.intervals import interval_text
from immunize.report.attacks.one_run import RETENTION, verdict_sentence
from immunize.report.cells import short
from immunize.report.conventions import HARDER_BY, NO_HARDER
from immunize.report.html.elements import Html, coded, join, tag
from immunize.report.html.page import Section, note
from immunize.report.html.tables import word
from immunize.report.html.views import KINDS, part_name, parts_of
from immunize.report.nulls import with_infinities
from immunize.report.one_run import EXACT

__all__ = ["verdicts_section"]


def verdicts_section(record: dict[str, Any], attack: dict[str, Any] | None) -> Section:
    """A card for each part of the data, one for the attackers, and the warnings.

    Args:
        record: of a run, finished or not.
        attack: of `immunize.attack` on that run, if there is one.
    """
    if not record.get("metrics"):
        content = join([note(_not_evaluated(record)), *_warnings(record)])
    else:
        cards = [*_definition_cards(record), _attack_card(attack)]
        how = f"{_HOW} {_GROUPS}" if "metrics_groups" in record else _HOW
        lost = diverged_cross_fit(record)
        missing = None if lost is None else note(f"There are no held-out numbers: {lost}.")
        content = join([tag("div", *cards, class_="verdicts"), missing, note(how), *_warnings(record)])
    return Section("verdicts", "Verdicts", content)


_HELD = (
    "To hold is what the harmful task should do; where the pre-training task does, that is a cost. Retention: "
    f"{RETENTION}; wanted near 0 of the harmful task, near 1 of the others."
)
_HOW = (
    "Definition 3.1 of the paper, by the estimator named in each card: (i) = κ(H_H(θ))/κ(H_H before), (ii) = κ(H_P(θ))/"
    f"κ(H_P before). (a) asks for (i) ≥ {HARDER_BY:g}, (b) for (ii) ≤ {NO_HARDER:g}. `fit` is what the model was "
    "immunized on, `held out` what it never saw."
)

_GROUPS = (
    "Groups: the mean over small groups of rows, the protocol of the paper's Table 3; otherwise all rows are taken."
)


def _not_evaluated(record: dict[str, Any]) -> str:
    status = record.get("status")
    text = f"This run is '{status}': nothing was evaluated, and there is no verdict."
    for name, facts in (record.get("training") or {}).items():
        if "diverged" in facts:
            found = facts["diverged"]
            text += f" The training `{name}` diverged in step {found['step']}: {found['term']} became {found['value']}."
    return text


def _definition_cards(record: dict[str, Any]) -> Iterator[Html]:
    for kind, (metrics, verdicts, about) in KINDS.items():
        if metrics not in record:
            continue
        for part in parts_of(record):
            of = record[verdicts] if part == "fit" else record[verdicts].get(part)
            if of is None:
                continue
            ratios = with_infinities(record[metrics][part][of["estimator"]])
            where = f"{part_name(part)}{', ' + about if about else ''}"
            yield tag(
                "div",
                tag("h3", f"Definition 3.1 on {where}"),
                tag("p", tag("span", f"RIR {short(ratios['rir'])}", class_="big"), f" by {of['estimator']}"),
                tag("ul", *(_line(*line) for line in _lines(of, ratios))),
                class_="card",
                data_kind=kind,
            )


def _lines(of: dict[str, Any], ratios: dict[str, float]) -> Iterator[tuple[bool, str, str]]:
    yield of["a"], "(a) harmful task harder", f"(i) = {short(ratios['ratio_harmful'])}"
    yield of["b"], "(b) pre-training task no harder", f"(ii) = {short(ratios['ratio_pretrain'])}"
    if "accuracy_before" in of:
        told = f"accuracy on D_P {of['accuracy_before']:.2f} % before, {of['accuracy_after']:.2f} % after"
    elif of["loss_plain"] <= EXACT * of["loss_zero"]:
        told = "says little: any features fit these targets exactly"
    else:
        told = f"optimal loss on D_P {short(of['loss_immunized'])}, best possible {short(of['loss_plain'])}"
    yield of["c"], "(c) pre-training task still done", told


def _line(passed: bool, what: str, told: str) -> Html:
    return tag("li", word(passed).shown, tag("span", what, tag("small", told)))


def _attack_card(attack: dict[str, Any] | None) -> Html:
    if attack is None:
        lines = [_open("not tried", "No attacker was tried", "a condition number speaks of one attacker only")]
    else:
        lines = []
        for task, facts in attack["tasks"].items():
            up_to = attack["verdicts"][task]["immunized"]["unbroken_up_to"]
            what = f"{facts['kind']} task: {facts['about']}"
            told = join([verdict_sentence(attack, task), *_retention(attack["results"][task]["immunized"])])
            lines.append(_open(f"to {up_to}" if up_to else "no tier", what, told))
        if not attack["control"]["passed"]:
            lines.append(_open("distrust", "The control held", "a random rotation, which changes nothing"))
    held = None if attack is None else tag("p", _HELD, class_="note")
    return tag("div", tag("h3", "Attackers"), tag("ul", *lines), held, class_="card")


def _retention(tiers: dict[str, Any]) -> Iterator[Html]:
    """By tier what of θ_0's score above chance is left; records from before it have none."""
    texts = [f"{tier} {interval_text(found.get('retention'))}" for tier, found in tiers.items() if "retention" in found]
    if texts:
        yield join([tag("br"), f"Retention: {', '.join(texts)}"])


def _open(verdict: str, what: str, told: str | Html) -> Html:
    return tag("li", tag("span", verdict, class_="open"), tag("span", what, tag("small", told)))


def _warnings(record: dict[str, Any]) -> list[Html]:
    items = []
    for name, facts in (record.get("training") or {}).items():
        for one in facts.get("warnings", []):
            until = "" if one["at_end"] else ", no longer at the end"
            where = f"{name.replace('_', '-')}, step {one['step']}{until}"
            items.append(tag("li", tag("strong", one["name"]), f" ({where}): ", coded(one["text"])))
    if not items:
        return []
    return [tag("h3", "Warnings of the training"), tag("ul", *items, class_="warnings")]
