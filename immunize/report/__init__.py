"""Tables and figures from records. Imports no other room, and no torch."""

from immunize.report.one_run import result_rows, show_record

__all__ = ["result_rows", "show_record"]
