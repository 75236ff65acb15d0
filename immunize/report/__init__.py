"""Tables and figures from records. Imports no other room, and no torch; pandas is imported by :func:`frame` alone."""

from immunize.report.one_run import show_record
from immunize.report.tidy import frame

__all__ = ["frame", "show_record"]
