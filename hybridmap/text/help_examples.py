"""Examples under ``--help``, by command: they work in a folder with a ``JOB.yaml`` and what was written before."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "init": (
        "hybridmap init",
        "hybridmap init ppo.yaml --algorithm ppo --model llama-3.1-8b --device h100-80gb-sxm --nodes 2",
        "hybridmap init mine.yaml --model my-model/config.json --response-length 8192 --mean-response-length 2500",
        "hybridmap init --schema",
    ),
    "plan": (
        "hybridmap plan JOB.yaml",
        "hybridmap plan JOB.yaml --placement split --even --out split",
        "hybridmap plan JOB.yaml --hint hybridmap-out/plan.json",
    ),
    "simulate": (
        "hybridmap simulate hybridmap-out/plan.json",
        "hybridmap simulate JOB.yaml --placement colocate",
    ),
    "compare": ("hybridmap compare JOB.yaml", "hybridmap compare JOB.yaml --systems"),
    "fit": ("hybridmap fit JOB.yaml", "hybridmap fit JOB.yaml --plan hybridmap-out/plan.json"),
    "what-if": (
        "hybridmap what-if JOB.yaml --set workload.response_length=128,512",
        "hybridmap what-if JOB.yaml --set cluster.0.nodes=1,2 --set workload.minibatches=1,2",
        "hybridmap what-if JOB.yaml --set cluster.0.device=h100-80gb-sxm,h200-sxm",
    ),
    "calibrate": (
        "hybridmap calibrate train.log --script run.sh --device h100-80gb-sxm",
        "hybridmap calibrate metrics.jsonl --plan hybridmap-out/plan.json",
    ),
    "watch": ("hybridmap watch train.log --plan hybridmap-out/plan.json",),
    "compare-runs": ("hybridmap compare-runs before.log after.log",),
    "mcp": ("hybridmap mcp",),
    "frontier": ("hybridmap frontier JOB.yaml",),
    "robust": ("hybridmap robust JOB.yaml --draws 3",),
    "explain": ("hybridmap explain JOB.yaml", "hybridmap explain hybridmap-out/plan.json"),
    "support": ("hybridmap support h200-sxm", "hybridmap support b200-sxm --engine tensorrt-llm@1.0"),
    "profile": ("hybridmap profile --quick --out my-machine",),
    "validate": (
        "hybridmap validate RUN.yaml --iterations 10",
        "hybridmap validate RUN.yaml --plan hybridmap-out/plan.json --as-planned",
    ),
    "report": (
        "hybridmap report hybridmap-out/plan.json",
        "hybridmap report hybridmap-out/plan.json other/plan.json -o both.html",
        "hybridmap report hybridmap-out/plan.json --what-if hybridmap-out/what-if.json -o report.html",
    ),
    "trace": (
        "hybridmap trace hybridmap-out/plan.json",
        "hybridmap trace hybridmap-out/plan.json --measured hybridmap-out/timeline.json -o both.json",
    ),
    "export": (
        "hybridmap export hybridmap-out/plan.json --to verl",
        "hybridmap export hybridmap-out/plan.json --to openrlhf --out launch",
    ),
    "import": (
        "hybridmap import run_verl.sh --device h100-80gb-sxm",
        "hybridmap import overrides.yaml --from verl --device h100-80gb-sxm --mean-response-length 200",
    ),
    "ui": ("hybridmap ui", "hybridmap ui JOB.yaml --port 8080"),
    "run": ("hybridmap run RUN.yaml --plan hybridmap-out/plan.json", "hybridmap run RUN.yaml --resume"),
}


def epilog(command: str) -> str | None:
    """The examples of a command as its help shows them, one a line."""
    lines = EXAMPLES.get(command)
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines) if lines else None
