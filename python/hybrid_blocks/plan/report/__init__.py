"""The report of a plan: figures, warnings, formulas, tables."""

from hybrid_blocks.plan.report.report import Report, make_report

__all__ = ["Report", "make_report"]
