"""How long the page of ``hybridmap ui`` computes after a change of the workload, in seconds of CPU.

python -m benchmarks.page_speed
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from hybridmap.ui.answer import answer_of
from hybridmap.ui.form import Form

GRPO = {"actor": "qwen3-8b", "reference": "qwen3-8b"}
FORMS = {
    "PPO, 4 x llama-3.1-8b, 16 x h100": Form(),
    "GRPO, 2 x qwen3-8b, 16 x h100": Form(algorithm="grpo", models=GRPO, prompts=128, samples_per_prompt=8),
}
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"prompts": 512},
    {"prompt_length": 512},
    {"response_length": 2048},
    {"minibatches": 4},
)


def seconds(form: Form) -> float:
    """CPU seconds of this process for one answer."""
    began = time.process_time()
    answer = answer_of(form)
    if answer.error:
        raise RuntimeError(answer.error)
    return time.process_time() - began


def main() -> None:
    """Print a line for each change; the first of a form reads the tables."""
    for name, form in FORMS.items():
        for change in CHANGES:
            told = ", ".join(f"{key} {value:,}" for key, value in change.items()) or "first"
            print(f"{name}: {told:<24}{seconds(replace(form, **change)):6.2f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
