"""Whole-number arithmetic."""


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest whole number not below the quotient."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """Smallest multiple of ``multiple`` not below ``value``."""
    return ceil_div(value, multiple) * multiple
