"""Parse an export's flags with OpenRLHF's own parser and run the checks that follow it, to the point of training.

    python openrlhf_check.py train_ppo_ray.py config.py SCRIPT.sh

The files are those of the package; importing them needs a GPU build of DeepSpeed and vLLM, so the block under
``if __name__ == "__main__"`` is taken from the source as it stands and run with ``train`` replaced by a recorder.
"""

import argparse
import ast
import importlib.util
import json
import shlex
import sys
import types
from datetime import datetime
from pathlib import Path


def main_block(source):
    """The statements under ``if __name__ == "__main__"``."""
    tree = ast.parse(source)
    found = [n for n in tree.body if isinstance(n, ast.If) and "__main__" in ast.unparse(n.test)]
    assert len(found) == 1, "expected one main block"
    return ast.Module(found[0].body, [])


def load_hierarchize(path):
    """Make ``openrlhf.utils.config`` importable by itself."""
    spec = importlib.util.spec_from_file_location("openrlhf.utils.config", path)
    module = importlib.util.module_from_spec(spec)
    for name in ("openrlhf", "openrlhf.utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["openrlhf.utils.config"] = module
    spec.loader.exec_module(module)


def words_of(script):
    text = Path(script).read_text().replace("$PROMPTS", "prompts").replace("\\\n", " ")
    words = shlex.split(text, comments=True)
    first = words.index("openrlhf.cli.train_ppo_ray") + 1
    return [word for word in words[first:] if word != "$@"]


def main():
    entry, config, script = sys.argv[1:4]
    load_hierarchize(config)
    seen = []
    words = words_of(script)
    sys.argv = [entry, *words]
    names = {"argparse": argparse, "datetime": datetime, "train": seen.append, "__name__": "__main__"}
    exec(compile(main_block(Path(entry).read_text()), entry, "exec"), names)
    assert len(seen) == 1, "the checks ended before training"
    args = seen[0]
    print(f"\nANSWER {json.dumps({'flags': len(words), 'estimator': args.algo.advantage.estimator})}")


if __name__ == "__main__":
    main()
