"""When what a page shows is what a command prints; times that the command itself took are masked."""

import re

TOOK = re.compile(r"(?<=\bfound in )[\d.,]+ s\b")
LEFT_OUT = "..."
WALKS = ("tutorial-nemo-rl", "tutorial-slurm", "tutorial-verl")
"""Pages whose commands follow each other; on the others each stands for itself."""


def pattern_of(output):
    """What a page shows as a pattern of what is printed."""
    lines = []
    for line in output:
        if line == LEFT_OUT:
            lines.append(r"(?:[^\n]*\n)+?")
        else:
            lines.append(".*".join(re.escape(part) for part in TOOK.sub("*", line).split(LEFT_OUT)) + "\n")
    return re.compile("".join(lines))


def shows(output, printed):
    whole = TOOK.sub("*", printed).rstrip("\n") + "\n"  # an empty line at the end is not shown
    return pattern_of(output).fullmatch(whole) is not None
