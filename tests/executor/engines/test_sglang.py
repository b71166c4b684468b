"""Protects the adapter of SGLang, which cannot be installed here: what it asks is what SGLang has, in the right order.

The stand-in for SGLang's ``Engine`` refuses whatever ``sglang_contract.txt`` does not list; with the package index, the
list is held against the package itself.
"""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tensordict import TensorDict

from executor.engines.entry import GeneratorSetup
from executor.engines.hybrid import HybridEngine
from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.engines.registry import GENERATION
from executor.engines.sglang import engine as adapter
from executor.engines.spec import EngineSpec
from executor.engines.support import require_engines_run, require_models_run
from executor.records import Identity
from executor.rl.sampling import Sampling
from executor.run_config import EnginesSection
from profiles.errors import InputError, NotYetError
from simulator.plan.groups import Degrees
from tests.executor.plans import TINY, colocated, config

CONTRACT = Path(__file__).with_name("sglang_contract.txt")
RELEASE = "0.5.23"
ONE = Degrees(1, 1, 1, 1, 1)
GIB = 1 << 30
BATCH = TensorDict(
    {
        "prompts": torch.tensor([[0, 4, 5], [1, 2, 3]]),
        "prompt_mask": torch.tensor([[False, True, True], [True, True, True]]),
        "uid": torch.tensor([7, 8]),
    },
    batch_size=[2],
)


def contract():
    """Names by what they are names of, and the files that have them."""
    names, files = {}, {}
    for line in CONTRACT.read_text().splitlines():
        if not line.startswith("#"):
            head, listed = line.split(":")
            what, files[what] = (part.strip() for part in head.split("@"))
            names[what] = set(listed.split())
    return names, files


NAMES, FILES = contract()


class Engine:
    """Takes what is listed, answers as SGLang does, keeps what it was told."""

    def __init__(self, **settings):
        assert settings.keys() <= NAMES["settings"]
        self.settings, self.events, self.weights = settings, [], {}

    def update_weights_from_tensor(self, **given):
        assert given.keys() <= NAMES["Engine.update_weights_from_tensor"]
        self.weights |= {name: tensor.clone() for name, tensor in given["named_tensors"]}
        self.events.append("weights")
        return True, "Success"

    def release_memory_occupation(self, tags):
        assert set(tags) <= NAMES["memory"]
        self.events.append(f"release {' '.join(sorted(tags))}")

    def resume_memory_occupation(self, tags):
        assert set(tags) <= NAMES["memory"]
        self.events.append(f"resume {' '.join(tags)}")

    def flush_cache(self):
        self.events.append("flush")

    def shutdown(self):
        self.events.append("shutdown")

    def generate(self, **given):
        assert given.keys() <= NAMES["Engine.generate"]
        assert all(params.keys() <= NAMES["sampling"] for params in given["sampling_params"])
        self.asked = given
        chosen = [[(-0.5 * i, token, None) for i, token in enumerate(ids)] for ids in given["input_ids"]]
        return [
            {"output_ids": ids, "meta_info": {"output_token_logprobs": found}}
            for ids, found in zip(given["input_ids"], chosen, strict=True)
        ]


@pytest.fixture
def generator(monkeypatch):
    """The adapter of the tiny model on the stand-in, on a device of 80 GiB of which 30 are free."""
    package = ModuleType("sglang")
    package.Engine = Engine
    monkeypatch.setitem(sys.modules, "sglang", package)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (30 * GIB, 80 * GIB))
    model = ModelSpec(str(TINY), optimizer=OptimizerConfig(1e-2), kv_cache_bytes=3 * GIB, max_num_seqs=4)

    def make(arch, dtype, clock):
        return GENERATION["sglang"].build(GeneratorSetup(Identity("A", 0, 1), ONE, model, arch, dtype, clock, 16))

    return model, make


@pytest.fixture
def hybrid(generator):
    model, make = generator
    identity = Identity("A", 0, 1)
    engine = HybridEngine(ONE, EngineSpec(model).training_engine(identity, "", ONE), make)
    engine.load()
    return engine


def test_a_transition_hands_over_the_trainers_weights_by_name_and_gives_our_copy_back(hybrid, monkeypatch):
    monkeypatch.setattr(adapter, "HAND_OVER_BYTES", 64 << 10)
    theirs = hybrid.generator._engine  # noqa: SLF001
    assert theirs.events == ["flush", "release kv_cache weights"]
    theirs.events.clear()
    hybrid.to_generation()
    several = theirs.events.count("weights")
    assert several > 1
    assert theirs.events == ["resume weights", *["weights"] * several, "resume kv_cache", "flush"]
    trained = hybrid.trainer.tensors()
    assert theirs.weights.keys() == trained.keys()
    assert all(torch.equal(theirs.weights[name], trained[name]) for name in trained)
    assert hybrid.generator.tensors() == {}
    hybrid.to_training()  # our copy is gone, so shards are not read back from it
    assert theirs.events[-4:] == ["flush", "release kv_cache", "flush", "release weights"]
    assert all(torch.equal(theirs.weights[name], tensor) for name, tensor in hybrid.trainer.tensors().items())


def test_settings_give_what_the_plan_says_as_shares_of_what_is_free(hybrid):
    settings = hybrid.generator._engine.settings  # noqa: SLF001
    taken = hybrid.generator.weights_bytes + 3 * GIB
    assert settings["mem_fraction_static"] * 30 * GIB == pytest.approx(taken)
    assert (settings["max_running_requests"], settings["context_length"]) == (4, 16)
    arch = hybrid.trainer.arch
    token_bytes = 2 * arch.num_layers * arch.num_kv_heads * arch.head_dim * hybrid.trainer.dtype.itemsize
    assert settings["max_total_tokens"] == 3 * GIB // token_bytes


def test_responses_come_as_columns(hybrid):
    hybrid.to_generation()
    found = hybrid.generator.generate(BATCH, Sampling(4, temperature=0.7, end_tokens=(9,)))
    assert found["responses"].tolist() == [[4, 5, 0, 0], [1, 2, 3, 0]]
    assert found["response_mask"].sum(dim=1).tolist() == [2, 3]
    assert found["log_probs"].tolist() == [[0.0, -0.5, 0.0, 0.0], [0.0, -0.5, -1.0, 0.0]]
    asked = hybrid.generator._engine.asked["sampling_params"]  # noqa: SLF001
    assert [params["temperature"] for params in asked] == [0.7, 0.7]
    assert asked[0]["sampling_seed"] != asked[1]["sampling_seed"]


def test_weights_that_are_not_taken_end_the_run(hybrid, monkeypatch):
    monkeypatch.setattr(Engine, "update_weights_from_tensor", lambda *_, **__: (False, "no such tensor"))
    with pytest.raises(InputError, match=r"SGLang does not take the weights .*: no such tensor"):
        hybrid.to_generation()


def test_what_it_cannot_run_is_refused_before_it_starts(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    engines = EnginesSection(training="fsdp2", generation="sglang")
    with pytest.raises(NotYetError, match="generation tp 2 pp 1 cannot run yet on sglang"):
        require_engines_run(colocated("grpo", (1, 1, 2), generation=(1, 2)), engines)
    cut = config(engines={"generation": "sglang"}, learning={"top_p": 0.9})
    with pytest.raises(NotYetError, match="top_p and top_k cannot run yet on sglang"):
        require_models_run(colocated("grpo"), cut)


def listed_in(source):
    """Functions with their parameters, annotated fields of classes, and texts of a Python file."""
    tree = ast.parse(source)
    functions, fields, texts = {}, set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    fields.add(part.target.id)
                if isinstance(part, ast.FunctionDef):
                    of = part.args
                    every = [*of.posonlyargs, *of.args, *of.kwonlyargs, *([of.kwarg] if of.kwarg else [])]
                    functions[f"{node.name}.{part.name}"] = {arg.arg for arg in every}
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    return functions, fields, texts


@pytest.mark.external
def test_the_list_is_true_of_sglangs_own_package(tmp_path):
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", tmp_path, f"sglang=={RELEASE}"]
    subprocess.run(fetch, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        for what, pattern in FILES.items():
            sources = [package.read(name).decode() for name in package.namelist() if Path(name).match(pattern)]
            assert sources, pattern
            functions, fields, texts = {}, set(), set()
            for source in sources:
                more = listed_in(source)
                functions, fields, texts = functions | more[0], fields | more[1], texts | more[2]
            has = functions.get(what) if what.startswith("Engine.") else fields | texts
            assert has is not None, f"{what} is gone"
            assert NAMES[what] <= has, f"{what} lacks {sorted(NAMES[what] - has)}"
