"""Protects the catalogue: every entry must reproduce its published parameter count exactly.

A wrong width, a missed bias or an untied head shows as a wrong count, so this is the test of the shape formulas
against the world outside.
"""

import json
import shutil
from pathlib import Path

import pytest

from profiles.errors import FileFormatError, InputError, UnknownNameError
from profiles.models import catalogue
from profiles.models.catalogue import hf_id, load_model, model_config, model_names, published_num_params
from profiles.models.layers import QuantizedWeights
from profiles.models.shape import ModelShape

FOLDER = Path(catalogue.__file__).parent / "configs"


def test_catalogue_covers_the_models_of_published_measurements() -> None:
    names = model_names()
    assert len(names) >= 30 and names == sorted(names)
    assert {"llama-2-7b", "llama-2-13b", "codellama-34b", "llama-2-70b"} <= set(names)  # HybridFlow's figures
    assert len({hf_id(name) for name in names}) == len(names)  # one name per model


@pytest.mark.parametrize("name", model_names())
def test_entry_has_its_published_parameter_count(name: str) -> None:
    shape = load_model(name)
    assert shape.name == name == name.lower()
    assert shape.num_params == published_num_params(name)


# Published "A" figures, billions as printed: model cards and technical reports. DeepSeek's leave the embedding out.
ACTIVE = [
    ("qwen3-30b-a3b", 3.3, 0.06, True),
    ("qwen3-235b-a22b", 22, 0.5, True),
    ("qwen1.5-moe-a2.7b", 2.7, 0.05, True),
    ("mixtral-8x7b-v0.1", 12.9, 0.05, True),
    ("mixtral-8x22b-v0.1", 39, 0.5, True),
    ("deepseek-v2-lite", 2.4, 0.06, False),
    ("deepseek-v2", 21, 0.5, False),
    ("deepseek-v3", 37, 0.5, False),
    ("qwen3-next-80b-a3b-instruct", 3.9, 0.05, True),  # without the embedding as many as its name says
    ("qwen3.5-397b-a17b", 17, 0.5, True),
    ("qwen3-coder-480b-a35b-instruct", 35, 0.5, True),
    ("gpt-oss-120b", 5.1, 0.05, False),
    ("gpt-oss-20b", 3.6, 0.05, False),
    ("minimax-m2.5", 10, 0.5, False),
    ("glm-4.5", 32, 1.0, False),
    ("glm-4.5-air", 12, 0.9, False),
    ("kimi-k2-instruct", 32, 0.5, False),
    ("llama-4-scout-17b-16e-instruct", 17, 0.5, True),
    ("llama-4-maverick-17b-128e-instruct", 17, 0.5, True),
    ("nvidia-nemotron-3-nano-30b-a3b-bf16", 3.6, 0.1, True),
    ("kimi-linear-48b-a3b-instruct", 3.1, 0.1, False),
    ("gemma-4-26b-a4b", 3.8, 0.1, True),
    ("nvidia-nemotron-3-super-120b-a12b-bf16", 12.7, 0.1, True),
    ("nvidia-nemotron-3-ultra-550b-a55b-bf16", 55, 1.1, True),
]


@pytest.mark.parametrize(("name", "billions", "rounding", "with_embedding"), ACTIVE)
def test_active_parameters_match_the_published_figure(
    name: str, billions: float, rounding: float, with_embedding: bool
) -> None:
    shape = load_model(name)
    counted = shape.active_params_per_token - (0 if with_embedding else shape.embedding_params)
    assert counted / 1e9 == pytest.approx(billions, abs=rounding)


def test_deepseek_v3_checkpoint_is_the_model_and_its_prediction_layer() -> None:
    """The count without the prediction layer is ours; this closes the sum with the published checkpoint's."""
    v3 = load_model("deepseek-v3")
    moe_layer = v3.attention_params + v3.norm_params_per_layer + v3.moe_mlp_params
    # It has its own embedding and head, a projection of two hidden states to one, and three more norms.
    prediction = moe_layer + 2 * v3.embedding_params + 2 * v3.hidden**2 + 3 * v3.hidden
    router_biases = (v3.num_moe_layers + 1) * 256  # kept in fp32, where the checkpoint also keeps the FP8 scales
    bf16, fp8 = 3_918_786_560, 680_571_043_840  # from the safetensors metadata
    assert v3.num_params + prediction - router_biases == bf16 + fp8


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("llama-2-7b", 2 * 32 * 128),  # every head has its own keys
        ("llama-3.1-8b", 2 * 8 * 128),  # grouped
        ("qwen2.5-0.5b", 2 * 2 * 64),
        ("gemma-2b", 2 * 1 * 256),  # one KV head for all
        ("qwen3-235b-a22b", 2 * 4 * 128),
        ("deepseek-v3", 512 + 64),  # one latent for all heads
        ("deepseek-v3.2", 512 + 64 + 128),  # and one key of the indexer
        ("kimi-k2.5", 512 + 64),
        ("minimax-m2.5", 2 * 8 * 128),
        ("qwen3.5-397b-a17b", 2 * 2 * 256),
        ("gemma-4-31b-it", 2 * 4 * 512),  # layers without a window have heads of their own
        ("minimax-m3", 2 * 4 * 128 + 128),  # and one key of the indexer
        ("kimi-linear-48b-a3b-instruct", 512 + 64),
    ],
)
def test_kv_elements(name: str, elements: int) -> None:
    assert load_model(name).kv_elements_per_token_per_layer == elements


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("llama-2-7b", 32),
        ("llama-2-13b", 8),  # 40 heads
        ("llama-2-70b", 64),
        ("qwen2.5-7b", 4),  # 28 heads
        ("qwen2.5-0.5b", 2),  # 14 heads
        ("qwen3-235b-a22b", 64),
        ("deepseek-v3", 128),
        ("qwen3.5-397b-a17b", 32),
        ("gpt-oss-120b", 64),
    ],
)
def test_largest_power_of_two_tensor_parallel(name: str, largest: int) -> None:
    shape = load_model(name)
    assert max(t for t in (2**i for i in range(12)) if shape.max_tensor_parallel_ok(t)) == largest


def test_cache_of_a_token_counts_each_kind_of_layer() -> None:
    """Gemma-4: 50 windowed layers have 16 heads of 256, 10 have 4 of 512; MiniMax-M3: 57 of 60 have a key more."""
    assert load_model("gemma-4-31b-it").kv_elements_per_token == 50 * 2 * 16 * 256 + 10 * 2 * 4 * 512
    assert load_model("minimax-m3").kv_elements_per_token == 60 * 2 * 4 * 128 + 57 * 128
    assert load_model("kimi-linear-48b-a3b-instruct").kv_elements_per_token == 7 * 576
    assert load_model("llama-3.1-8b").kv_elements_per_token == 32 * 2 * 8 * 128


def test_layers_of_sparse_and_sliding_models() -> None:
    assert (load_model("deepseek-v3").num_dense_layers, load_model("deepseek-v3").num_moe_layers) == (3, 58)
    assert load_model("qwen3-30b-a3b").num_moe_layers == 48
    assert (load_model("gemma-2-9b").sliding_window, load_model("gemma-2-9b").num_sliding_layers) == (4096, 21)
    assert load_model("gemma-3-1b-pt").num_sliding_layers == 22
    assert (load_model("gpt-oss-120b").sliding_window, load_model("gpt-oss-120b").num_full_layers) == (128, 18)
    assert (load_model("llama-4-scout-17b-16e-instruct").num_full_layers) == 12
    maverick = load_model("llama-4-maverick-17b-128e-instruct")
    assert (maverick.num_dense_layers, maverick.num_moe_layers, maverick.ffn) == (24, 24, 16384)


def test_layers_of_hybrid_models() -> None:
    qwen, nemotron = load_model("qwen3.5-397b-a17b"), load_model("nvidia-nemotron-3-nano-30b-a3b-bf16")
    assert (qwen.num_attention_layers, qwen.num_linear_layers, qwen.num_moe_layers) == (15, 45, 60)
    assert qwen.linear is not None and nemotron.linear is not None
    assert qwen.linear.state_elements == 64 * 128 * 128 and qwen.linear.state_element_bytes == 4
    assert (nemotron.num_attention_layers, nemotron.num_linear_layers, nemotron.num_moe_layers) == (6, 23, 23)
    assert nemotron.num_dense_layers == 0 and nemotron.linear.kind == "mamba2"
    assert nemotron.linear.state_elements == 64 * 64 * 128
    dense = load_model("nvidia-nemotron-nano-9b-v2")
    assert dense.num_layers == dense.num_attention_layers + dense.num_linear_layers + dense.num_dense_layers


def test_what_a_search_left_of_llama_and_a_model_that_speaks() -> None:
    """49 of 80 layers keep attention; Qwen2.5-Omni's text is Qwen2.5-7B's beside towers for images and sound."""
    cut, omni = load_model("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5"), load_model("Qwen/Qwen2.5-Omni-7B")
    assert (cut.num_layers, cut.num_attention_layers, cut.num_dense_layers) == (80, 49, 80)
    assert cut.ffn * 80 + cut.ffn_beyond == 49 * 28_672 + 10 * 7_168 + 8 * 5_632 + 6 * 14_336 + 6 * 2_816 + 17_920
    assert omni.num_params == load_model("qwen2.5-7b").num_params
    assert omni.vision_params == 676_550_144 + 639_647_232  # as transformers 5.19.0 counts its default config


def test_sparse_attention_and_its_shared_indexers() -> None:
    v32, glm = load_model("deepseek-v3.2"), load_model("glm-5.2")
    assert v32.sparse is not None and (v32.sparse.topk, v32.sparse.num_layers) == (2048, 61)
    assert glm.sparse is not None and (glm.sparse.num_layers, glm.num_layers) == (21, 78)


def test_number_formats_are_those_of_the_checkpoint() -> None:
    """Kimi-K2.5 holds its routed experts in INT4 and all else in BF16; gpt-oss the same in MXFP4."""
    for name, fmt in (("kimi-k2.5", "int4"), ("gpt-oss-20b", "mxfp4")):
        weights = load_model(name).weights
        assert weights is not None and weights.experts == fmt and weights.attention == "bf16"
        assert weights.shared_experts == "bf16" and weights.dense_mlp == "bf16" and weights.kv_cache is None
    minimax = load_model("minimax-m2.5").weights
    assert minimax is not None and {minimax.attention, minimax.experts} == {"fp8_block"}
    assert load_model("nvidia/MiniMax-M2.5-NVFP4").weights == QuantizedWeights(
        linear_mixers="nvfp4", dense_mlp="nvfp4", shared_experts="nvfp4", experts="nvfp4", kv_cache="fp8"
    )
    assert load_model("qwen3-8b").weights is None


def test_prediction_layers_and_vision_towers_are_stated_beside_the_counts() -> None:
    assert load_model("minimax-m2.5").num_mtp_layers == 3 and load_model("glm-5").num_mtp_layers == 1
    vl, text = load_model("qwen3-vl-30b-a3b-instruct"), load_model("qwen3-30b-a3b")
    assert vl.vision_params == 538_631_408 and vl.num_params == text.num_params
    assert load_model("gemma-3-27b-it").num_params + load_model("gemma-3-27b-it").vision_params == 27_432_406_640


def test_critic_of_a_tied_and_of_an_untied_model() -> None:
    llama, qwen = load_model("llama-2-7b"), load_model("qwen2.5-0.5b")
    assert llama.num_params_of("scalar") == 6_738_415_616 - 32_000 * 4096 + 4096
    assert qwen.num_params_of("scalar") == 494_032_768 + 896


# What recipes of verl and NeMo-RL of the last two years train, and what published measurements name.
RECIPES = (Path(__file__).parent / "recipes.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("checkpoint", RECIPES)
def test_recipes_models_resolve_by_their_hugging_face_id(checkpoint: str) -> None:
    assert load_model(checkpoint).num_params == load_model(checkpoint.upper()).num_params


def test_every_known_checkpoint_has_the_shape_of_its_entry() -> None:
    """A line changes positions, number format or vision tower, and no count of the text model."""
    for checkpoint in json.loads((FOLDER.parent / "checkpoints.json").read_text(encoding="utf-8")):
        facts = model_config(checkpoint)["_hybridmap"]
        assert isinstance(facts, dict) and facts["hf_id"] == checkpoint
        shape, entry = load_model(checkpoint), load_model(facts["same_as"])
        assert shape.num_params == entry.num_params and shape.num_layers == entry.num_layers, checkpoint
    for name in model_names():
        assert load_model(hf_id(name)).num_params == load_model(name).num_params


def test_a_folder_wins_over_a_hugging_face_id(tmp_path: Path) -> None:
    """Trainers save their own models under such paths; what lies there is what the user means."""
    folder = tmp_path / "Qwen" / "Qwen3-8B"
    folder.mkdir(parents=True)
    shutil.copy(FOLDER / "qwen3-4b.json", folder / "config.json")
    assert same_model(load_model("Qwen/Qwen3-8B", base=tmp_path), "qwen3-4b")


def same_model(loaded: ModelShape, name: str) -> bool:
    return loaded.num_params == load_model(name).num_params


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    shutil.copy(FOLDER / "qwen3-8b.json", tmp_path / "mine" / "config.json")
    shutil.copy(FOLDER / "qwen3-8b.json", tmp_path / "other.json")
    for text in ("mine", "./mine", "mine/config.json", "other.json", str(tmp_path / "other.json")):
        assert same_model(load_model(text, base=tmp_path), "qwen3-8b")


def test_path_is_relative_to_the_current_folder_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(FOLDER / "qwen3-8b.json", tmp_path / "config.json")
    assert same_model(load_model("."), "qwen3-8b")


def test_catalogue_name_wins_over_a_folder(tmp_path: Path) -> None:
    (tmp_path / "qwen3-8b").mkdir()  # an empty checkpoint folder must not hide the catalogue
    assert load_model("qwen3-8b", base=tmp_path).num_params == 8_190_735_360


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("qwen3-9b", "unknown model 'qwen3-9b'; did you mean .*qwen3-8b"),  # a slip
        ("Qwen3-8B", "did you mean .*qwen3-8b"),  # names are lower case
        ("Qwen/Qwen3-9B", "unknown model 'Qwen/Qwen3-9B'.*nor is there such a file or folder"),  # a Hugging Face id
        ("zzz", r"none of the \d+ known ones is like it .*path of a config.json"),  # nothing near
        ("", "unknown model ''"),  # must not mean the base folder
        ("line\nbreak\0", r"unknown model 'line\?break\?'"),  # stays one line
        ("n" * 5000, "unknown model 'nnn"),  # longer than any file name
        ("no/such/folder", "nor is there such a file or folder"),  # a path to nothing
    ],
)
def test_unknown_models(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnknownNameError, match=message) as caught:
        load_model(name, base=tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the model config .*absent\.json"):
        load_model("absent.json", base=tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileFormatError, match=r"config\.json: model_type"):
        load_model(".", base=tmp_path)


def test_published_count_of_an_unknown_model() -> None:
    with pytest.raises(UnknownNameError, match="unknown model 'gpt-j'"):
        published_num_params("gpt-j")
