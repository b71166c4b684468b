"""Protects rewards from a service: asked once a response, tried again, and never a reward that was not given."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from tensordict import TensorDict

from executor.engines.function import FunctionEngine, FunctionSpec
from executor.rl import served_reward
from executor.rl.text import TextCodec
from profiles.errors import InputError


@pytest.fixture
def service(monkeypatch):
    """A service on this machine that judges by equality; ``answers`` holds what it says first, in order."""
    monkeypatch.setattr(served_reward, "PAUSE_S", 0.0)
    answers, asked = [], []

    class Judge(BaseHTTPRequestHandler):
        def do_POST(self):
            rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(rows)
            right = json.dumps({"reward": float(rows["response"] == rows["answer"])})
            code, text = answers.pop(0) if answers else (200, right)
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/score", answers, asked
    server.shutdown()
    server.server_close()


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
    assert served_reward.ServedReward(url)("a", "a") == 1.0
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
        served_reward.ServedReward(url)("a", "a")
    assert says in str(error.value) and len(asked) == times
