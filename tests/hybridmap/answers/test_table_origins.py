"""Protects what a device says of its tables: which one an engine is priced by, and what is put in another's place."""

from hybridmap.answers.table_origins import (
    TRAINER,
    borrowed_collectives,
    borrowed_kernels,
    origins_of,
    replaced_rows,
    without_a_graph,
)
from profiles.store import DATA, load_device


def test_each_engine_names_the_table_that_its_price_is_asked_of() -> None:
    device = load_device("h200-sxm")
    found = {(origin.operator, origin.engine): origin for origin in origins_of(device.tables)}
    assert found["moe", TRAINER].measured_with == "vllm 0.24.0"
    assert found["moe", "sglang@0.5"].measured_with == "sglang 0.5.10"
    assert found["gemm", "tensorrt-llm@1.0"].tables[0] == "gemm.tensorrt-llm@1.3.0rc20"
    for (operator, engine), origin in found.items():
        if engine == "vllm@0.12":
            assert list(origin.tables) == device.of_engine("vllm", "0.12").tables.names(operator)


def test_what_stands_in_the_place_of_something_else_is_said() -> None:
    assert (
        "vllm from 0.15 until 0.17: moe in fp8_block by tensorrt-llm's tables"
        in borrowed_kernels(load_device("h200-sxm").tables)[0]
    )
    assert [text[:29] for text in borrowed_kernels(load_device("b200-sxm").tables)] == ["vllm from 0.10: moe in mxfp4_"]
    assert borrowed_kernels(load_device("a100-80gb-sxm").tables) == []
    assert replaced_rows({"gemm": {"fp8": "2 of 10 rows, on the median 1.5 times"}, "moe": {}}) == [
        "gemm, fp8: 2 of 10 rows, on the median 1.5 times the fastest engine's, which stands in their place"
    ]


def test_collectives_of_another_part_are_named_with_the_reason() -> None:
    (said,) = borrowed_collectives(DATA / "l40s")
    assert said.startswith("collectives by rtx-pro-6000's tables (") and "1.2 GB/s" in said
    assert borrowed_collectives(DATA / "h100-80gb-sxm") == []


def test_a_module_in_whose_place_another_stands_is_named_with_why():
    tables = load_device("h200-sxm").tables
    said = without_a_graph(tables, origins_of(tables))
    assert any(
        text.startswith("mla_decode.vllm@0.24.0: no entry below 80 us, mla_decode.tensorrt-llm") and "graph" in text
        for text in said
    ), said
    tables = load_device("a100-80gb-sxm").tables
    assert without_a_graph(tables, origins_of(tables)) == []
