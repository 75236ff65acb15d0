"""The files of a report, each whole or not at all. Imports no other room, no torch and no matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from immunize.errors import UserError
from immunize.files import whole, write_text
from immunize.report.loading import write_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(
    out: Path,
    texts: Mapping[str, str],
    *,
    records: Sequence[Mapping[str, Any]] | None = None,
    figures: Mapping[str, Figure] = {},
) -> None:
    """Write the files of a report.

    Args:
        out: a folder, made if it is not there.
        texts: by the names of their files.
        records: that the report is of, which stay beside it; None where they stay elsewhere.
        figures: by the names of their files without suffix.

    Raises:
        UserError: they cannot be written there.
    """
    try:
        if records is not None:
            write_results(records, out)
        for name, text in texts.items():
            write_text(out / name, text)
        for name, figure in figures.items():
            save_figure(figure, out / name)
    except OSError as error:
        raise UserError(f"{out} cannot be written into ({error.strerror}); choose another folder with out=") from None


def save_figure(figure: Figure, stem: Path) -> None:
    """Write a figure as `<stem>.png` and `<stem>.pdf`; the same figure gives the same bytes."""
    save_as(figure, stem.with_suffix(".png"), dpi=150, metadata={"Software": None})
    save_as(figure, stem.with_suffix(".pdf"), metadata={"CreationDate": None})


def save_as(figure: Figure, path: Path, **how: Any) -> None:
    """Write a figure whole or not at all, in the format that the name ends in."""
    with whole(path) as partial:
        figure.savefig(partial, format=path.suffix[1:], **how)
