"""Protects the catalogue: every entry must reproduce its published parameter count exactly.

A wrong width, a missed bias or an untied head shows as a wrong count, so this is the test of the shape formulas
against the world outside.
"""

import shutil
from pathlib import Path

import pytest

from profiles.errors import FileFormatError, InputError, UnknownNameError
from profiles.models import catalogue
from profiles.models.catalogue import hf_id, load_model, model_names, published_num_params
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
    ],
)
def test_largest_power_of_two_tensor_parallel(name: str, largest: int) -> None:
    shape = load_model(name)
    assert max(t for t in (2**i for i in range(12)) if shape.max_tensor_parallel_ok(t)) == largest


def test_layers_of_sparse_and_sliding_models() -> None:
    assert (load_model("deepseek-v3").num_dense_layers, load_model("deepseek-v3").num_moe_layers) == (3, 58)
    assert load_model("qwen3-30b-a3b").num_moe_layers == 48
    assert (load_model("gemma-2-9b").sliding_window, load_model("gemma-2-9b").num_sliding_layers) == (4096, 21)
    assert load_model("gemma-3-1b-pt").num_sliding_layers == 22


def test_critic_of_a_tied_and_of_an_untied_model() -> None:
    llama, qwen = load_model("llama-2-7b"), load_model("qwen2.5-0.5b")
    assert llama.num_params_of("scalar") == 6_738_415_616 - 32_000 * 4096 + 4096
    assert qwen.num_params_of("scalar") == 494_032_768 + 896


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
        ("Qwen/Qwen3-8B", "did you mean .*qwen3-8b.*nor is there such a file or folder"),  # a Hugging Face id
        ("zzz", "known: codellama-34b, .*path of a config.json"),  # nothing near
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
