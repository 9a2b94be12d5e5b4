"""Whole-number arithmetic."""


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest whole number not below the quotient."""
    return -(-numerator // denominator)


def needs_more(total: int, first: int, most: int) -> bool:
    """Whether parts of up to ``most`` are one more for ``total`` if ``first`` goes before."""
    return 1 + ceil_div(total - first, most) > ceil_div(total, most)


def round_up(value: int, multiple: int) -> int:
    """Smallest multiple of ``multiple`` not below ``value``."""
    return ceil_div(value, multiple) * multiple
