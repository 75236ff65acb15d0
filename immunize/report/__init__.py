"""Tables and figures from records. Imports no other room, and no torch; pandas is imported by :func:`frame` alone."""

from typing import TYPE_CHECKING, Any

from immunize.report.one_run import result_rows, show_record

if TYPE_CHECKING:
    from immunize.report.tidy import frame

__all__ = ["frame", "result_rows", "show_record"]


def __getattr__(name: str) -> Any:
    if name == "frame":
        from immunize.report.tidy import frame

        return frame
    raise AttributeError(f"module 'immunize.report' has no attribute {name!r}")
