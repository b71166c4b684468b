"""Protects models that nobody here knows: given by their config, fetched where that is asked for, else never."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hybridmap.job.load import load_job
from profiles.errors import InputError, UnknownNameError

CONFIG = Path(__file__).parents[3] / "profiles" / "models" / "configs" / "qwen2.5-0.5b.json"
JOB = """
algorithm: grpo
models: {{actor: {actor}, reference: {reference}}}
workload: {{prompts: 32, samples_per_prompt: 8, prompt_length: 256, response_length: 256}}
cluster: [{{device: h100-80gb-sxm, nodes: 1}}]
"""
VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=32 "
    "data.max_prompt_length=256 data.max_response_length=256 actor_rollout_ref.model.path=my-lab/Tuned-0.5B "
    "actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1 trainer.n_gpus_per_node=8 trainer.nnodes=1\n"
)


class Hub(BaseHTTPRequestHandler):
    """What huggingface.co says of one file of one model; ``asked`` are the paths."""

    asked: list[str]

    def do_HEAD(self):
        self._answer(b"")

    def do_GET(self):
        self._answer(CONFIG.read_bytes())

    def _answer(self, body):
        if not self.path.startswith("/api/"):  # the client asks for a list of its own, once a day
            self.asked.append(self.path)
        there = self.path == "/my-lab/Tuned-0.5B/resolve/main/config.json"
        self.send_response(200 if there else 404)
        if there:
            self.send_header("X-Repo-Commit", "a" * 40)
            self.send_header("ETag", '"b"')
        else:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", str(CONFIG.stat().st_size if there else 0))
        self.end_headers()
        self.wfile.write(body if there else b"")

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Paths that a Hugging Face of this machine was asked for; its cache is empty."""
    handler = type("Asked", (Hub,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        yield handler.asked
        server.shutdown()


def job_of(folder, actor, reference="qwen2.5-0.5b"):
    path = folder / "job.yaml"
    path.write_text(JOB.format(actor=actor, reference=reference))
    return path


def test_an_unknown_id_is_fetched_only_where_that_is_asked_for(hub, tmp_path):
    path = job_of(tmp_path, "my-lab/Tuned-0.5B")
    with pytest.raises(UnknownNameError, match="--allow-download"):
        load_job(path)
    assert hub == []
    job = load_job(path, allow_download=True)
    assert job.document["models"]["actor"]["shape"]["name"] == "tuned-0.5b"
    assert set(hub) == {"/my-lab/Tuned-0.5B/resolve/main/config.json"}
    del hub[:]
    assert load_job(path).document == job.document  # from the cache, by anybody
    assert hub == []


def test_known_models_are_never_asked_for(hub, tmp_path):
    load_job(job_of(tmp_path, "Qwen/Qwen2.5-7B"), allow_download=True)
    assert hub == []


def test_a_model_that_is_not_there_is_one_message(hub, tmp_path):
    with pytest.raises(InputError, match=r"cannot fetch the config\.json of my-lab/nothing") as caught:
        load_job(job_of(tmp_path, "my-lab/nothing"), allow_download=True)
    assert "\n" not in str(caught.value)


def test_a_config_stands_for_the_one_unknown_model(tmp_path):
    path = job_of(tmp_path, "my-lab/Tuned-0.5B", "my-lab/Tuned-0.5B")
    models = load_job(path, model_config=CONFIG).document["models"]
    assert [models[role]["shape"]["name"] for role in ("actor", "reference")] == ["tuned-0.5b"] * 2
    for actor, reference, why in (
        ("qwen3-8b", "qwen3-8b", "all of them are"),
        ("my-lab/a", "my-lab/b", "my-lab/a, my-lab/b are not"),
    ):
        with pytest.raises(InputError, match=f"stands for the one model .* {why}"):
            load_job(job_of(tmp_path, actor, reference), model_config=CONFIG)


@pytest.mark.parametrize("options", [["--allow-download"], ["--model-config", str(CONFIG)]])
def test_commands_take_such_models(options, hub, run, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(VERL)
    made, out = tmp_path / "made.yaml", ["--out", tmp_path / "out"]
    path = job_of(tmp_path, "my-lab/Tuned-0.5B")
    first = [made, *(["--model", "my-lab/Tuned-0.5B"] if options[0] == "--allow-download" else [])]
    for line in (
        ["init", *first],
        ["fit", path],
        ["what-if", path, "--set", "workload.prompts=64", *out],
        ["import", script, "--device", "h100-80gb-sxm", *out],
    ):
        if options[0] == "--model-config":
            assert hub == []
        result = run(*line, *options, "--json")
        assert result.exit_code == 0, result.output
        json.loads(result.stdout)
    assert load_job(made).document["models"]["actor"]["shape"]["config"]["num_hidden_layers"] == 24


def test_a_known_model_needs_no_config(run, tmp_path):
    result = run("init", tmp_path / "job.yaml", "--model", "qwen3-8b", "--model-config", CONFIG)
    assert (result.exit_code, "qwen3-8b is" in result.stderr) == (2, True)
