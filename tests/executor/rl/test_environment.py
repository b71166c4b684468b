"""Protects rollouts of several turns: who wrote what, what is read next, and that only the policy's is learned."""

import pytest
import torch
from tensordict import TensorDict

from executor.rl.environment import TURN_SHIFT, Episodes, environment_class
from executor.rl.environment_section import EnvironmentSection
from executor.rl.loss_terms import loss_weights
from executor.rl.sequences import sequences_of
from executor.rl.text import TextCodec
from executor.run import run
from profiles.errors import InputError, NotYetError
from tests.executor.plans import colocated, config, generating_apart, job, learned, metrics

HERE = "tests.executor.rl.test_environment"
CODEC = TextCodec(alphabet="0123456789=+")


class Adder:
    """Writes ``=`` after each turn, and ends where a turn has the answer's first digit."""

    def __init__(self, prompt: str, answer: str) -> None:
        self.answer = answer

    async def step(self, response: str) -> tuple[str, bool]:
        return "=", self.answer[:1] in response


class Blocking:
    def __init__(self, prompt: str, answer: str) -> None: ...

    def step(self, response: str) -> tuple[str, bool]:
        return "", True


def prompts():
    return TensorDict(
        {
            "uid": torch.tensor([5, 6]),
            "prompts": torch.tensor([[0, 1, 2], [3, 4, 5]]),
            "prompt_mask": torch.tensor([[False, True, True], [True, True, True]]),
            "answers": torch.tensor([[7, 8], [9, -1]]),
        },
        batch_size=[2],
    )


def turn(*rows, version=0):
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    mask = torch.tensor([[i < len(row) for i in range(width)] for row in rows])
    columns = {"responses": tokens, "response_mask": mask, "log_probs": -tokens.float()}
    return TensorDict({**columns, "version": torch.full((len(rows),), version)}, batch_size=[len(rows)])


def test_turns_and_answers_become_one_response_with_a_mask_of_who_wrote_it():
    episodes = Episodes(EnvironmentSection(name=f"{HERE}:Adder", turns=3), CODEC, prompts(), 6)
    assert episodes.take(turn([1, 2], [9, 1])) == 1  # the second sample has its answer
    following = episodes.prompts()
    assert following["prompts"].tolist() == [[1, 2, 1, 2, 10]]
    assert following["uid"].tolist() == [5 + TURN_SHIFT]
    assert episodes.turn_tokens() == 3
    assert episodes.take(turn([3, 4, 5], version=1)) == 0  # six tokens are all there is room for
    found = episodes.columns()
    assert found["responses"].tolist() == [[1, 2, 10, 3, 4, 5], [9, 1, 0, 0, 0, 0]]
    assert found["loss_mask"].int().tolist() == [[1, 1, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0]]
    assert found["response_mask"].sum(1).tolist() == [6, 2]
    assert found["log_probs"].tolist() == [[-1, -2, 0, -3, -4, -5], [-9, -1, 0, 0, 0, 0]]
    assert found["version"].tolist() == [1, 0]
    assert found["turns"].tolist() == [2, 1]
    rows, _ = sequences_of(prompts().update(found))
    assert rows["token_mask"][0].tolist() == [False] + [True] * 8
    assert loss_weights(rows["target_mask"], "token-mean").sum() == 7


def test_turns_are_limited():
    section = EnvironmentSection(name=f"{HERE}:Adder", turns=2, turn_tokens=2)
    episodes = Episodes(section, CODEC, prompts(), 50)
    assert episodes.turn_tokens() == 2
    assert [episodes.take(turn([1, 2], [1, 2])) for _ in range(2)] == [2, 0]
    assert episodes.columns()["response_mask"].sum(1).tolist() == [5, 5]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nowhere:Adder", "nowhere"), (f"{HERE}:Nobody", "Nobody"), (f"{HERE}:Blocking", "async def step"), ("a", "a")],
)
def test_a_class_that_cannot_be_is_named(name, reason):
    with pytest.raises(InputError, match=reason):
        environment_class(name)


def test_a_run_plays_turns_alike_whatever_is_packed_together(tmp_path):
    given = config(environment={"name": f"{HERE}:Adder", "turns": 3, "turn_tokens": 2}, cpu_ranks=1)
    lines = []
    for name, micro_batch in (("a", 4), ("b", 3)):
        made = colocated("grpo", micro_batch=micro_batch)
        run(job("grpo", samples=2, response=8), made, given, tmp_path / name, 2)
        lines.append([learned(line) for line in metrics(tmp_path / name)])
    assert lines[0] == [pytest.approx(line, rel=1e-4, abs=1e-6) for line in lines[1]]
    assert 2 < lines[0][0]["response_tokens"] <= 8
    assert 1 < lines[0][0]["turns"] <= 3
    assert lines[0][0]["policy_tokens"] < lines[0][0]["response_tokens"], "the environment wrote the rest"
    assert lines[0][0]["actor/approx_kl"] == pytest.approx(0, abs=1e-4)  # log-probs of each turn are the trainer's


def test_what_has_one_turn_is_refused(tmp_path):
    given = config(environment={"name": f"{HERE}:Adder", "turns": 2})
    with pytest.raises(NotYetError, match="environment cannot run yet with ppo"):
        run(job("ppo"), colocated("ppo"), given, tmp_path, 1)
    apart = generating_apart(colocated("grpo"), (1, 1, 1), "one-step-off")
    with pytest.raises(NotYetError, match="schedule 'one-step-off'"):
        run(job("grpo", samples=2), apart, given, tmp_path, 1)
