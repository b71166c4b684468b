"""Protects what a profile covers: the linear layers of a model at every degree, and powers of two around them."""

from profiles.models.catalogue import load_model
from profiles.models.gemm_shapes import head_shapes, linear_shapes, powers_of_two


def test_llama_3_8b_has_its_published_widths() -> None:
    shapes = linear_shapes(load_model("llama-3-8b"), (1,))
    assert shapes == {(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)}
    assert (14336, 4096) in linear_shapes(load_model("llama-3-8b"), (2,))


def test_heads_are_those_of_one_rank() -> None:
    assert head_shapes(load_model("llama-3-8b"), (1, 8)) == {(128, 32, 8), (128, 4, 1)}
    assert head_shapes(load_model("deepseek-v3")) == set()


def test_powers_of_two_enclose_what_is_asked_for() -> None:
    assert powers_of_two(5, 20) == [4, 8, 16, 32]
    assert powers_of_two(8, 8) == [8]
