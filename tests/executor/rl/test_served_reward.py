"""Protects rewards from a service: asked once a response, tried again, and never a reward that was not given."""

import contextlib
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from tensordict import TensorDict

from executor.engines.function import FunctionEngine, FunctionSpec, resolve_reward
from executor.rl import served_reward
from executor.rl.served_reward import ServedReward, is_url
from executor.rl.text import TextCodec
from profiles.errors import InputError, UnknownNameError


@pytest.fixture
def served(monkeypatch):
    """A service on this machine: ``served({path: function of headers and body})`` gives its address."""
    monkeypatch.setattr(served_reward, "PAUSE_S", 0.0)
    started = []

    def serve(paths):
        class Judge(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                said = paths[self.path](self.headers, body)
                code, text = said if isinstance(said, tuple) else (200, json.dumps(said))
                self.send_response(code)
                self.send_header("Set-Cookie", "session=1")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        started.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in started:
        server.shutdown()
        server.server_close()


@pytest.fixture
def service(served):
    """A service that judges by equality; ``answers`` holds what it says first, in order."""
    answers, asked = [], []

    def judge(_, rows):
        asked.append(rows)
        return answers.pop(0) if answers else {"reward": float(rows["response"] == rows["answer"])}

    return served({"/score": judge}) + "/score", answers, asked


def test_a_batch_is_judged_in_its_order(service):
    url, _, asked = service
    engine = FunctionEngine(FunctionSpec(url, TextCodec(alphabet="abc")))
    engine.load()
    tokens = torch.tensor([[0], [1], [2]])
    batch = TensorDict(
        {"responses": tokens, "answers": torch.tensor([[0], [2], [2]]), "response_mask": torch.ones(3, 1).bool()}, [3]
    )
    assert engine.scores(batch).tolist() == [1.0, 0.0, 1.0]
    assert sorted(rows["response"] for rows in asked) == ["a", "b", "c"]


def test_a_busy_service_is_asked_again(service):
    url, answers, asked = service
    answers += [(503, "busy"), (200, "no JSON")]
    assert ServedReward(url)("a", "a") == 1.0
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("first", "times", "says"),
    [
        ([(404, "")], 1, "after 1 tries: HTTP Error 404"),
        ([(200, '{"reward": NaN}')] * 3, 3, 'expected {"reward": number}'),
        ([(200, '{"reward": true}')] * 3, 3, "got"),
        ([(500, "")] * 3, 3, "after 3 tries"),
    ],
)
def test_no_reward_is_an_error_with_the_url(service, first, times, says):
    url, answers, asked = service
    answers += first
    with pytest.raises(InputError, match=url) as error:
        ServedReward(url)("a", "a")
    assert says in str(error.value) and len(asked) == times


def test_sandbox_fusion_runs_the_program_of_unit_tests(served):
    """The body is one that ``sandbox_fusion.models.RunCodeRequest`` (0.3.7) takes; a program that exits early fails."""

    def run(_, body):
        assert set(body) == {"code", "language", "run_timeout"} and body["language"] == "python"
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            exec(body["code"], {})
        return {"status": "Success", "run_result": {"status": "Finished", "return_code": 0, "stdout": said.getvalue()}}

    address = f"sandbox-fusion+{served({'/run_code': run})}"
    assert is_url(address)
    assert ServedReward(address)("```python\nx = 2\n```", "assert x == 2") == 1.0
    assert ServedReward(address)("raise SystemExit", "assert x == 2") == 0.0


def test_a_sandbox_that_fails_gives_no_reward(served):
    """A fault of the service is not a program that failed: it would teach the policy something wrong."""
    address = served({"/run_code": lambda *_: {"status": "SandboxError", "message": "no pod"}})
    with pytest.raises(InputError, match=r"gave no reward after 3 tries: expected \{\"status\": .* got .*no pod"):
        ServedReward(f"sandbox-fusion+{address}")("x = 2", "")


def test_nemo_gym_verifies_in_the_session_that_it_seeded(served):
    """The row goes to both paths as it is, the response in the form of OpenAI's Responses; cookies are carried."""
    row = {"responses_create_params": {"input": [{"role": "user", "content": "2+2"}]}, "expected_answer": "4"}
    seen = []

    def verify(headers, body):
        seen.append((headers.get("Cookie"), {key: body[key] for key in row}))
        text = body["response"]["output"][0]["content"][0]["text"]
        return body | {"reward": float(text == body["expected_answer"])}

    address = f"nemo-gym+{served({'/seed_session': lambda *_: {}, '/verify': verify})}"
    assert ServedReward(address).many(["4", "5"], [json.dumps(row)] * 2) == [1.0, 0.0]
    assert seen == [("session=1", row)] * 2
    assert ServedReward(address)("4", "4") == 1.0  # an answer that is no row
    assert seen[-1] == ("session=1", {"responses_create_params": {"input": []}, "expected_answer": "4"})


def test_verifiers_sees_messages(served):
    judge = served({"/score": lambda _, body: {"reward": body["completion"][-1]["content"] == body["answer"] and 0.5}})
    assert ServedReward(f"verifiers+{judge}/score")("a", "a") == 0.5


def test_an_unknown_service_is_named_before_a_run():
    with pytest.raises(UnknownNameError, match=r"reward service.*nemo-gym"):
        resolve_reward("nemo-gm+http://127.0.0.1:1")


def test_a_plus_later_in_a_url_is_part_of_it():
    assert ServedReward("https://host/a+b")._parts() == (None, "https://host/a+b")  # noqa: SLF001
