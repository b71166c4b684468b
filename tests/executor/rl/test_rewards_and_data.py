"""Protects what prompts are made of and how answers are judged."""

import os

import pytest
import torch
from tensordict import TensorDict

from executor.engines.function import FunctionEngine, FunctionSpec, resolve_reward
from executor.rl.data import PromptSource, held_out, left_padded, read_examples, right_padded
from executor.rl.data_section import DataSection, ValidationSection
from executor.rl.parallel_reward import ParallelReward
from executor.rl.rewards import REWARDS
from executor.rl.text import TextCodec
from executor.run_settings import end_tokens
from profiles.errors import FileFormatError, InputError, UnknownNameError

SECTION = DataSection(task="sorted-digits", digits=5, alphabet="0123456789=+")


@pytest.mark.parametrize(
    ("name", "response", "answer", "reward"),
    [
        ("exact-match", " 42 ", "42", 1),
        ("exact-match", "43", "42", 0),
        ("per-character", "024", "014", 2 / 3),
        ("per-character", "", "0", 0),
        ("per-character", "0240", "024", 1),
        ("math", r"so \boxed{1,234} it is, not 5", "1234", 1),
        ("math", "first 3, then 4.50", "4.5", 1),
        ("math", "no number", "4", 0),
        ("math", r"\boxed{x+1}", "x+1", 1),
        ("regex", "ab12", r"[a-z]+\d+", 1),
        ("regex", "ab12!", r"[a-z]+\d+", 0),
        ("unfinished", "12=", "99", 0),
        ("unfinished", "12", "99", 1),
        ("unfinished", "12==", "99", 1),
        ("first-is-even", "20", "", 1),
        ("first-is-even", "=2", "", 0),
        ("first-is-even", "", "", 0),
    ],
)
def test_reward_functions(name, response, answer, reward):
    assert REWARDS[name](response, answer) == pytest.approx(reward)


def test_a_pattern_that_takes_years_is_given_up():
    assert REWARDS["regex"]("a" * 60 + "b", "(a|aa)+c|(a*)*$") == 0


def test_a_function_engine_reads_up_to_the_mask():
    engine = FunctionEngine(FunctionSpec("per-character", TextCodec(alphabet="abc")))
    engine.load()
    batch = TensorDict(
        {
            "responses": torch.tensor([[0, 1, 2], [0, 2, 2]]),
            "answers": torch.tensor([[0, 1, 2], [0, 1, -1]]),
            "response_mask": torch.tensor([[True, True, False], [True, True, True]]),
        },
        batch_size=[2],
    )
    assert engine.scores(batch).tolist() == pytest.approx([2 / 3, 0.5])


def test_functions_run_in_workers_of_their_own_and_answer_in_order():
    here = [str(os.getpid())] * 9
    found = ParallelReward("tests.work:number_elsewhere", resolve_reward, 2).many([str(i) for i in range(9)], here)
    assert found == [float(i) for i in range(9)]
    with pytest.raises(UnknownNameError, match="did you mean exact-match"):
        ParallelReward("exact-macht", resolve_reward, 2)


def test_users_functions_are_found_by_module():
    assert resolve_reward("executor.rl.rewards:exact_match")("a", "a") == 1
    with pytest.raises(InputError, match="no_such"):
        resolve_reward("executor.rl.rewards:no_such")
    with pytest.raises(UnknownNameError, match="did you mean exact-match"):
        resolve_reward("exact-macht")


def test_prompts_are_left_padded_and_answers_right():
    batch = PromptSource(SECTION, 4, 1, 6, seed=0).batch(0)
    assert batch["prompts"].shape == (4, 6)
    assert batch["prompt_mask"].tolist() == [[False, False, True, True, True, True]] * 4
    codec = TextCodec(alphabet=SECTION.alphabet)
    for prompt, mask, answer in zip(batch["prompts"], batch["prompt_mask"], batch["answers"], strict=True):
        text = codec.decode(prompt[mask].tolist())
        assert text.endswith("=")
        assert codec.decode(answer.tolist()) == "".join(sorted(text[:-1]))


def test_modular_sums_are_right():
    section = DataSection(task="modular-sum", digits=7, alphabet=SECTION.alphabet)
    batch, codec = PromptSource(section, 20, 1, 4, seed=0).batch(0), TextCodec(alphabet=section.alphabet)
    for prompt, answer in zip(batch["prompts"].tolist(), batch["answers"].tolist(), strict=True):
        a, b = codec.decode(prompt)[:-1].split("+")
        assert codec.decode(answer) == str((int(a) + int(b)) % 7)


def test_samples_of_a_prompt_follow_one_another_and_are_told_apart():
    first, second = (PromptSource(SECTION, 2, 3, 4, seed=0).batch(i) for i in (0, 1))
    assert first["uid"].tolist() + second["uid"].tolist() == list(range(12))
    assert first["group"].tolist() == [0, 0, 0, 1, 1, 1]
    assert second["group"].tolist() == [2, 2, 2, 3, 3, 3]
    assert torch.equal(first["prompts"][0], first["prompts"][2])


def test_a_prompt_is_encoded_once_however_many_samples_it_has(monkeypatch):
    """Of 16 samples each, tokenizing was most of what a batch of real prompts takes."""
    encoded = []
    encode = TextCodec.encode
    monkeypatch.setattr(TextCodec, "encode", lambda self, text: encoded.append(text) or encode(self, text))
    assert len(PromptSource(SECTION, 3, 16, 4, seed=0).batch(0)) == 48
    assert len(encoded) == 2 * 3, "its answer, too"


def test_rows_are_padded_on_either_side():
    rows, pad = [[1, 2, 3], [], [4]], -1
    right, mask = right_padded(rows, 4, pad)
    assert right.tolist() == [[1, 2, 3, pad], [pad] * 4, [4, pad, pad, pad]]
    assert mask.sum(1).tolist() == [3, 0, 1]
    left, mask = left_padded(rows, 3)
    assert left.tolist() == [[1, 2, 3], [0, 0, 0], [0, 0, 4]]
    assert mask.tolist() == [[True] * 3, [False] * 3, [False, False, True]]
    with pytest.raises(InputError, match="a prompt has 3 tokens"):
        left_padded(rows, 2)


def test_batches_depend_on_seed_and_iteration_alone():
    source = PromptSource(SECTION, 8, 1, 4, seed=3)
    assert torch.equal(source.batch(5)["prompts"], PromptSource(SECTION, 8, 1, 4, seed=3).batch(5)["prompts"])
    assert not torch.equal(source.batch(5)["prompts"], source.batch(6)["prompts"])


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_file_is_read_to_its_end_before_it_begins_again(tmp_path, shuffle):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f'{{"prompt": "{i}"}}\n' for i in range(5)))
    section = DataSection(file=str(file), alphabet="0123456789", shuffle=shuffle)
    source = PromptSource(section, 2, 1, 1, seed=0)
    drawn = [int(row) for i in range(5) for row in source.batch(i)["prompts"]]
    passes = [drawn[:5], drawn[5:]]
    assert [sorted(each) for each in passes] == [[0, 1, 2, 3, 4]] * 2
    assert (passes == [[0, 1, 2, 3, 4]] * 2) is not shuffle
    assert int(PromptSource(section, 2, 1, 1, seed=0).batch(2)["prompts"][1]) == drawn[5]


@pytest.fixture(scope="module")
def chat_tokenizer(tmp_path_factory):
    """A tokenizer of words with a template and two end tokens, one of them from its generation config."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    words = ["<pad>", "</s>", "<end>", "user", "assistant", "two", "plus", "?"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>")
    made.chat_template = (
        "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' <end> ' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant{% endif %}"
    )
    made.save_pretrained(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    return folder


def test_prompts_go_through_the_tokenizers_chat_template(chat_tokenizer, tmp_path):
    file = tmp_path / "prompts.jsonl"
    asked = '"two plus two ?"'
    file.write_text(f'{{"prompt": {asked}}}\n{{"prompt": [{{"role": "user", "content": {asked}}}]}}\n')
    plain, chat = [5, 6, 5, 7], [3, 5, 6, 5, 7, 2, 4]
    for templated, expected in ((False, [plain, chat]), (True, [chat, chat])):
        section = DataSection(file=str(file), tokenizer=str(chat_tokenizer), chat_template=templated, shuffle=False)
        batch = PromptSource(section, 2, 1, 8, seed=0).batch(0)
        found = [row[mask].tolist() for row, mask in zip(batch["prompts"], batch["prompt_mask"], strict=True)]
        assert found == expected
    with pytest.raises(InputError, match="an alphabet has none"):
        TextCodec(alphabet="a").encode_chat([])


def test_end_tokens_are_the_tokenizers_and_its_generation_configs(chat_tokenizer):
    assert TextCodec(tokenizer=str(chat_tokenizer)).end_tokens() == (1, 2)
    section = DataSection(task="modular-sum", tokenizer=str(chat_tokenizer))
    assert end_tokens(section, "tokenizer") == (1, 2)
    assert (end_tokens(section, "never"), end_tokens(section, 7), end_tokens(SECTION, "tokenizer")) == ((), (7,), ())


def test_held_out_prompts_are_drawn_with_a_seed_of_their_own():
    found = held_out(SECTION, ValidationSection(every=2, prompts=8, samples=2), 6, 0).batch(0)["prompts"]
    assert len(found) == 16
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[::2], PromptSource(SECTION, 8, 1, 6, seed=0).batch(0)["prompts"])


def test_files_of_prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    section = DataSection(file=str(file), alphabet=SECTION.alphabet)
    assert PromptSource(section, 2, 1, 4, seed=0).batch(0)["answers"].tolist() == [[2], [2]]
    with pytest.raises(InputError, match=r"a prompt has 4 tokens, workload.prompt_length is 3"):
        PromptSource(section, 2, 1, 3, seed=0).batch(0)
    file.write_text('{"prompt": "1"}\n{"answer": "2"}\n')
    with pytest.raises(FileFormatError, match="line 2: no JSON object with a prompt"):
        read_examples(file)
    file.write_text("")
    with pytest.raises(InputError, match="no prompts"):
        read_examples(file)


def test_characters_beyond_the_alphabet_are_named():
    with pytest.raises(InputError, match="lacks 'x', 'y'"):
        TextCodec(alphabet="ab").encode("axyb")
