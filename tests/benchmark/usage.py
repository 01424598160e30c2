"""What the numbers of a command line may be: types for argparse, which says them beside the flag."""
import argparse
import math


def whole(word):
    """A number of things, 1 or more."""
    try:
        value = int(word)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{word!r} has to be a whole number, 1 or more")
    return value


def positive(word):
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{word!r} has to be a number above 0")
    return value
