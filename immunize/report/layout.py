"""A table once, written as Markdown or as LaTeX (booktabs). Imports no other room and no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from immunize.files import write_text

__all__ = ["Table", "tex", "write_tables"]

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "→": r"$\to$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "∞": r"$\infty$",
    "×": r"$\times$",
    "≥": r"$\ge$",
    "≤": r"$\le$",
    "<": r"$<$",
    ">": r"$>$",
    "·": r"$\cdot$",
    "κ": r"$\kappa$",
    "θ": r"$\theta$",
    "λ": r"$\lambda$",
    "η": r"$\eta$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "₁": r"$_1$",
    "−": "$-$",
    "–": "--",
}
_POWER = re.compile(r"(\d(?:\.\d+)?)e([+-]\d+)")
_CODE = re.compile(r"`([^`]*)`")


@dataclass(frozen=True)
class Table:
    r"""A table with two rows of headings.

    Attributes:
        title: what the numbers are.
        label: for `\ref` in LaTeX.
        groups: (heading, columns below it) from left to right; the first columns name the row.
        rows: cells as text, `code` between backticks.
        notes: sentences below the table.
    """

    title: str
    label: str
    groups: Sequence[tuple[str, Sequence[str]]]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default=())

    @property
    def columns(self) -> list[str]:
        """What each is headed by: its own name and its group's."""
        return [f"{name} {group}".strip() for group, names in self.groups for name in names]

    def markdown(self, *, heading: bool = True) -> str:
        """A Markdown table, with its title and notes if `heading`."""
        lines = [f"## {self.title}", ""] if heading else []
        lines += [_line(self.columns), _line(["---"] * len(self.columns)), *map(_line, self.rows)]
        if self.notes and heading:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """A `table` float with the title as its caption and the notes below; needs booktabs and graphicx."""
        columns = [name for _, names in self.groups for name in names]
        alignment = "".join(("l" if i == 0 else "r") * len(names) for i, (_, names) in enumerate(self.groups))
        over, rules, at = [], [], 1
        for group, names in self.groups:
            over.append(rf"\multicolumn{{{len(names)}}}{{{'c' if group else 'l'}}}{{{tex(group)}}}")
            if group:
                rules.append(rf"\cmidrule(lr){{{at}-{at + len(names) - 1}}}")
            at += len(names)
        body = [" & ".join(map(tex, row)) + r" \\" for row in self.rows]
        notes = [rf"\par\smallskip\parbox{{\linewidth}}{{\scriptsize {' '.join(map(tex, self.notes))}}}"]
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
                rf"\caption{{{tex(self.title)}}}",
                rf"\label{{tab:{self.label}}}",
                r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",  # only where it is too wide
                rf"\begin{{tabular}}{{{alignment}}}",
                r"\toprule",
                *([" & ".join(over) + r" \\", "".join(rules)] if rules else []),
                " & ".join(map(tex, columns)) + r" \\",
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}}",
                *(notes if self.notes else []),
                r"\end{table}",
                "",
            ]
        )


def write_tables(tables: Sequence[Table], name: str, out: Path) -> None:
    """Write `table.md` and `table.tex` into `out`.

    Args:
        tables: in their order.
        name: of the experiment that they belong to.
        out: a folder that exists.
    """
    write_text(out / "table.md", "\n".join(table.markdown() for table in tables))
    head = f"% From records by python -m immunize.report experiment={name}; needs \\usepackage{{booktabs,graphicx}}\n\n"
    write_text(out / "table.tex", head + "\n".join(table.latex() for table in tables))


def tex(text: str) -> str:
    """Text as LaTeX: special characters escaped, symbols in math mode, `code` in typewriter, 1.2e-04 as a power.

    Links are shown by their text.
    """
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = _CODE.split(text)
    shown = [_escaped(part) if i % 2 == 0 else rf"\texttt{{{_escaped(part)}}}" for i, part in enumerate(parts)]
    return "".join(shown)


def _escaped(text: str) -> str:
    parts = _POWER.split(text)  # text, mantissa, exponent, text, ...
    result = []
    for i in range(0, len(parts), 3):
        result.append("".join(_SPECIAL.get(letter, letter) for letter in parts[i]))
        if i + 2 < len(parts):
            result.append(rf"${parts[i + 1]}\times10^{{{int(parts[i + 2])}}}$")
    return "".join(result)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
