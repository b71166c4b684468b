"""Protects the tools for agents, as a client meets them over standard input and output: typed answers, plain errors."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp")
import anyio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from hybridmap.agent.server import SKILL, TOOLS

ROOT = Path(__file__).parents[3]
LOGS = ROOT / "examples" / "logs"
JOB = {
    "algorithm": "grpo",
    "models": {"actor": "llama-3.2-1b", "reference": "llama-3.2-1b"},
    "workload": {"prompts": 64, "samples_per_prompt": 4, "prompt_length": 256, "response_length": 256},
    "cluster": [{"device": "h100-80gb-sxm", "nodes": 1}],
}


def session(folder, talk):
    """Start the server as an agent does, and talk to it."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "hybridmap", "mcp"], cwd=str(folder), env={"PYTHONPATH": str(ROOT)}
    )

    async def main():
        async with Client(server) as client:
            return await talk(client)

    return anyio.run(main)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_agent_plans_simulates_exports_and_is_told_what_is_wrong(tmp_path):
    async def talk(client):
        tools = await client.list_tools()
        planned = await client.call_tool("plan", {"job": JOB, "out": "out"})
        plan_file = planned.structured_content["plan_file"]
        again = await client.call_tool("simulate", {"plan_file": plan_file})
        exported = await client.call_tool("export", {"plan_file": plan_file, "to": "verl"})
        fits = await client.call_tool("fit", {"job": JOB})
        why = await client.call_tool("explain", {"plan_file": plan_file, "time_limit_s": 3.0})
        wrong = await client.call_tool("plan", {"job": {**JOB, "algorithm": "sarsa"}})
        return tools, planned, again, exported, fits, why, wrong

    tools, planned, again, exported, fits, why, wrong = session(tmp_path, talk)
    assert {tool.name for tool in tools.tools} == {tool.__name__ for tool in TOOLS}
    assert all(tool.description and tool.output_schema for tool in tools.tools)
    answer = planned.structured_content
    assert answer["low_s"] < answer["iteration_s"] == again.structured_content["iteration_s"] < answer["high_s"]
    assert sum(answer["stages_s"].values()) == pytest.approx(answer["iteration_s"])
    assert "gap" in answer["proof"]
    assert (tmp_path / "out" / "plan.json").is_file()
    assert any(name.endswith(".sh") for name in exported.structured_content["files"])
    assert fits.structured_content["fits"] is True
    assert any("twice as fast" in line for line in why.structured_content["result"])
    assert wrong.is_error
    assert "unknown algorithm 'sarsa'" in wrong.content[0].text


def test_a_script_and_its_log(tmp_path):
    from hybridmap.agent.server import calibrate, import_script, plan

    run = import_script(str(LOGS / "verl-qwen2-7b-8xh100.sh"), "h100-80gb-sxm", 227, 101.5)
    assert run.fits or run.why_not
    planned = plan(JOB, str(tmp_path))
    log = tmp_path / "train.log"
    log.write_text("".join(f"step:{i} - timing_s/gen:1.5 - timing_s/step:4.0\n" for i in range(6)))
    learned = calibrate(str(log), planned.plan_file, str(tmp_path))
    assert learned.steps == 6
    assert abs(learned.errors_after["generate_sequences"]) < abs(learned.errors_before["generate_sequences"])
    assert Path(learned.calibration_file).is_file()


def test_the_skill_names_every_tool():
    text = SKILL.read_text()
    assert [tool.__name__ for tool in TOOLS if f"`{tool.__name__}`" not in text] == ["simulate"]
