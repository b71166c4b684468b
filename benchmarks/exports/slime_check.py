"""Hold the arguments of an export to a checkout of slime, which has no package.

    python slime_check.py CHECKOUT SCRIPT.sh

Run inside an environment with Megatron-Core. An argument passes if slime's parser declares it, a script of its own
gives it, or it is a field of Megatron-Core's configurations, whose parser slime extends. Prints one JSON document.
"""

import ast
import dataclasses
import json
import re
import shlex
import sys
from pathlib import Path

from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.transformer import TransformerConfig

DECLARED = ("slime/utils/arguments.py", "slime/backends/sglang_utils/arguments.py")
SCRIPTS = "scripts/*.sh"


def declared(checkout):
    """Flags that slime's own parsers name."""
    found = set()
    for file in DECLARED:
        for node in ast.walk(ast.parse((checkout / file).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--"):
                found.add(node.value)
    return found


def given(checkout):
    """Flags that slime's own scripts give, Megatron-Core's and SGLang's among them."""
    texts = [path.read_text() for path in sorted(checkout.glob(SCRIPTS))]
    assert texts, "no scripts to hold arguments to"
    return set(re.findall(r"(?m)^\s*#?\s*(--[a-z][\w-]*)", "\n".join(texts)))


def configured():
    """Fields of Megatron-Core's configurations as flags."""
    names = [field.name for each in (TransformerConfig, ModelParallelConfig) for field in dataclasses.fields(each)]
    return {f"--{name.replace('_', '-')}" for name in names}


def main():
    checkout, script = Path(sys.argv[1]), Path(sys.argv[2])
    words = shlex.split(script.read_text().replace("\\\n", " "), comments=True)
    flags = [word for word in words[words.index("exec") :] if word.startswith("--")]
    known = declared(checkout) | given(checkout) | configured()
    unknown = sorted(set(flags) - known)
    assert not unknown, f"arguments that slime does not have: {', '.join(unknown)}"
    print(f"\nANSWER {json.dumps({'arguments': len(flags)})}")


if __name__ == "__main__":
    main()
