"""A plan in words: figures, warnings, tables and the explanation of one figure."""

from hybrid_blocks.tools.plan.report.report import Plan, Report, make_report

__all__ = ["Plan", "Report", "make_report"]
