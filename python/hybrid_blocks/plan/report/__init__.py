"""What a plan tells its reader: figures, warnings, formulas, tables."""

from hybrid_blocks.plan.report.report import Report, make_report

__all__ = ["Report", "make_report"]
