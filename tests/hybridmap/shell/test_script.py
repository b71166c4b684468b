"""Protects the reading of scripts: the words of a command are those that bash itself gives it, and nothing is run."""

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmap.shell.script import read_script
from profiles.errors import FileFormatError

BASH = shutil.which("bash")
ENVIRONMENT = {"HOME": "/home/me", "NODES": "4"}

SNIPPETS = {
    "lower case": "nnodes=2\nrun n=$nnodes m=${nnodes}x",
    "defaults": "run a=${x:-1} b=${NODES:-1} c=${x:-$NODES} d=${x-y} e=${HOME:+set} f=${x:+set}.",
    "empty and unset": "e=\nrun a=${e:-1} b=${e-1} c=${e:+1}. d=${e+1}.",
    "default that is kept": ": ${x:=5}\nrun a=$x",
    "arithmetic": "a=3\nrun $((a * 1024)) $(( (a + 1) * 2 )) $((a ** 3 - 7 % 4)) $((-7 / 2)) $((010 + 0x1F))",
    "conditions in arithmetic": "a=3 b=0\nrun $((a > 2 ? 10 : 20)) $((a == 3 && b == 0)) $((b || 0)) $((!b))",
    "bits and bases": "a=3\nrun $((~a)) $((1 << a)) $((2#101)) $((-7 % 3)) $((5 & 6 | 8 ^ 1))",
    "counting": "i=1\n((i += 4))\nlet j=i*2\nrun $((i++)) $i $((--j)) $j",
    "a variable that holds an expression": "a='2 * 3'\nb=a\nrun $((a + 1)) $((b))",
    "quotes": "a='x y'\nrun \"$a\" $a '$a' \"it's\" a\\ b \"\\$a \\\\ \\x\" $'t\\tn'",
    "splitting": "a=' 1  2 '\nrun x${a}y \"$a\" $a$a",
    "empty words": 'e=\nrun "" \'\' $e "$e" end',
    "arrays": 'A=(a=1 "b=2 3" c=${x:-4})\nA+=(d=5)\nrun "${A[@]}" ${#A[@]} ${A[1]} "${A[*]}" "${A[@]:1:2}"',
    "an array with comments and continuations": 'A=(\n  # first\n  a=1 \\\n  b=2 \\\n)\nrun "${A[@]}"',
    "empty arrays": 'A=()\nrun "${A[@]}" x "${A[@]+"${A[@]}"}" y',
    "names as keys": "declare -A M=([small]=2 [large]=8)\nk=large\nrun ${M[$k]} ${M[small]}",
    "elements": 'A[2]=x\nA[0]=y\ni=2\nrun ${A[i]} ${A[$i]} ${#A[@]} "${!A[@]}"',
    "continued lines": "run a=1 \\\n  b=2 \\\n  c=3",
    "cuts": "p=/a/b.c/d.tar.gz\nrun ${p##*/} ${p#*/} ${p%.gz} ${p%%.*} ${p/b/X} ${p//a/Y} ${p:3:3} ${p: -2}x ${#p}",
    "cases of letters": "p=Qwen\nrun ${p,,} ${p^^} ${p,}",
    "if": 'a=5\nif [ "$a" -gt 3 ]; then b=1; elif [ $a = 0 ]; then b=2; else b=3; fi\nrun $b',
    "if, the other way": "a=x\nif [[ $a == y* && -n $a ]]; then b=1; else b=3; fi\nrun $b",
    "tests": 'a=x\n[ -z "$a" ] && run empty || run full\n[[ ! ( $a = y || $a = z ) ]] && run neither',
    "tests joined": 'a=x\n[ 1 -lt 2 -a "$a" != y ] && run both\n[ 1 -gt 2 -o ! "$a" = y ] && run either',
    "case": 'm=large\ncase "$m" in small|tiny) n=1;; l*) n=8;; *) n=0;; esac\nrun $n',
    "for": "for n in 1 2 3; do run n=$n; done\nfor ((i = 0; i < 2; i++)); do run i=$i; done",
    "while": "i=0\nwhile [ $i -lt 3 ]; do i=$((i + 1)); [ $i = 2 ] && continue; run $i; done",
    "break": "for n in 1 2 3; do if [ $n = 2 ]; then break; fi; run $n; done\nrun end",
    "functions": 'go() { local n=$1; shift; run n=$n "$@"; }\ngo 1 a "b c"',
    "functions that call": "go() { run $1; }\nfunction twice { go $1; go $1; return 0; run never; }\ntwice 7",
    "arguments": 'run "$@" $# ${1:-none}',
    "set": "set -euo pipefail\nset -x\nrun 1\nexit 0\nrun 2",
    "substitution": 'a=$(echo 5)\nb=`echo 6`\nrun $a $b $(echo x y) "$(echo x y)" $(false && echo 1 || echo 2)',
    "subshells": "a=1\n(a=2; run $a)\n{ a=3; run $a; }\nrun $a",
    "exports": 'export A=1 B\nexport "C=2 3"\nreadonly D=4\nA=9 run $A "$C" $D',
    "eval": "CMD='run a=1 b=2'\neval $CMD c=3\n$CMD",
    "another shell": "a=1\nexport a\nrun outer\nbash -c 'run inner $a $1' name x",
    "pipes": "a=1\necho x | a=2 run b $a\ntrue |& { a=3; run c $a; }\nrun d $a",
    "lines between": "run a <<EOF\nrun b\nEOF\nrun c 2>&1 > /dev/null",
    "indirect": "a=b\nb=5\nrun ${!a}",
    "appending": "a=1\na+=2\nrun $a",
    "hydra's own dollars": "run '${data.x}' \"a=\\${data.y}\" 'c=[\"x\",\"y\"]' d=['x','y']",
}
"""What people write, and what bash makes of it; ``run`` is the program whose words are looked at."""


def by_bash(text, folder):
    """The words that bash gives ``run``, call by call: a stub on an otherwise empty path that prints them."""
    stub = folder / "run"
    stub.write_text('#!/bin/sh\nfor w in "$@"; do printf \'%s\\0\' "$w"; done >> "$OUT"; printf \'\\1\' >> "$OUT"\n')
    stub.chmod(0o755)
    (folder / "bash").unlink(missing_ok=True)
    (folder / "bash").symlink_to(BASH)
    out = folder / "out"
    out.write_text("")
    (folder / "script.sh").write_text(text)
    environment = {**ENVIRONMENT, "PATH": str(folder), "OUT": str(out)}
    done = subprocess.run([BASH, "script.sh"], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    calls = out.read_text().split("\1")[:-1]
    return [tuple(call.split("\0")[:-1]) for call in calls], done.stderr


def by_us(text):
    found = read_script(text, "script.sh", ENVIRONMENT)
    commands = [command for command in found.commands if command.words[0].value == "run"]
    assert not any(word.missing for command in commands for word in command.words)
    return [tuple(word.value for word in command.words[1:]) for command in commands]


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
@pytest.mark.parametrize("name", [name for name in SNIPPETS if name not in ("cuts",)])
def test_the_words_are_those_of_bash(name, tmp_path):
    expected, complaints = by_bash(SNIPPETS[name], tmp_path)
    assert expected, complaints
    assert by_us(SNIPPETS[name]) == expected


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
def test_cuts_are_those_of_bash_and_one_from_the_end_is_refused(tmp_path):
    text = SNIPPETS["cuts"].replace(" ${p: -2}x", "")
    assert by_us(text) == by_bash(text, tmp_path)[0]
    with pytest.raises(FileFormatError, match="from the end"):
        by_us(SNIPPETS["cuts"])


NUMBERS = st.recursive(
    st.one_of(st.integers(0, 99).map(str), st.sampled_from(["a", "b", "$a", "${b}", "${c:-3}"])),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "<", ">=", "==", "&&", "||", "&", "|"]), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("-({})".format),
        st.tuples(inner, inner, inner).map(lambda x: f"({x[0]}) ? ({x[1]}) : ({x[2]})"),
    ),
    max_leaves=6,
)


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
@settings(max_examples=15, deadline=None)
@given(st.lists(NUMBERS, min_size=8, max_size=8))
def test_drawn_arithmetic_is_that_of_bash(tmp_path_factory, expressions):
    lines = "\n".join(f"run $(( {each} ))" for each in expressions)
    text = f"a=7\nb=12\n{lines}\n"
    expected, complaints = by_bash(text, tmp_path_factory.mktemp("bash"))
    assert len(expected) == len(expressions), complaints
    assert by_us(text) == expected


PIECES = st.sampled_from(
    [
        "x",
        "1",
        "$a",
        "${a}",
        '"$a"',
        '"${e}"',
        "$e",
        "'$a'",
        '"${A[@]}"',
        "${A[@]}",
        '"${A[*]}"',
        "${A[0]}",
        "${u:-d e}",
        '"${u:-d e}"',
        "${a:+y}",
        "${e:-z}",
        "$((1 + 2))",
        "\\ ",
        '" "',
        "${#A[@]}",
        "$(echo p q)",
        '"$(echo p q)"',
        "${a#q}",
    ]
)


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(PIECES, min_size=1, max_size=4).map("".join), min_size=8, max_size=8))
def test_drawn_words_are_those_of_bash(tmp_path_factory, words):
    text = "a='q r'\ne=\nA=(1 '2 3' '')\n" + "\n".join(f"run {word} end" for word in words) + "\n"
    assert by_us(text) == by_bash(text, tmp_path_factory.mktemp("bash"))[0]


def words_of(text, **environment):
    (command,) = read_script(text, "script.sh", environment).commands
    return command.words


def test_what_the_script_takes_from_elsewhere_is_named():
    nodes, lines, dated, first = words_of("x=$(ls)\nrun n=$NODES l=$x d=${NAME:-$(date +%Y)} f=$1")[1:]
    assert nodes.missing == ("NODES",)
    assert lines.missing == ("$(ls)",)
    assert dated.missing == ("NAME",)  # what to give, rather than the command that its default would come from
    assert first.missing == ("$1",)
    assert words_of("run n=$NODES", NODES="8")[1].value == "n=8"


def test_no_variable_of_this_process_is_looked_at(monkeypatch):
    monkeypatch.setenv("NODES", "8")
    assert words_of("run n=$NODES")[1].missing == ("NODES",)


def test_a_branch_on_something_unknown_leaves_unknown_what_it_sets():
    text = 'case "$DEVICE" in gpu) tp=4; n=1;; npu) tp=8; n=1;; *) exit 1;; esac\nrun tp=$tp n=$n'
    tp, n = words_of(text)[1:]
    assert tp.missing == ("DEVICE",)
    assert (n.value, n.missing) == ("n=1", ())  # all ways that go on agree
    assert words_of(text, DEVICE="npu")[1].value == "tp=8"


def test_after_an_exit_that_may_have_been_taken_the_script_goes_on():
    assert words_of('if [ -z "$MODEL" ]; then echo usage; exit 1; fi\nrun a=1')[1].value == "a=1"


def test_what_follows_a_return_that_may_have_been_taken_is_in_doubt():
    text = "f() { if [ $FAST = 1 ]; then return; fi; tp=8; }\ntp=1\nf\nrun tp=$tp"
    assert words_of(text)[1].missing == ("FAST",)
    assert words_of(text, FAST="1")[1].value == "tp=1"


def test_a_loop_of_unknown_length_leaves_unknown_what_it_sets():
    (word,) = words_of("n=0\nfor h in $(cat hosts); do n=$((n + 1)); done\nrun n=$n")[1:]
    assert word.missing == ("$(cat hosts)",)
    (word,) = words_of("hosts=($(cat hosts))\nrun n=${#hosts[@]}")[1:]
    assert word.missing == ("$(cat hosts)",)
    (word,) = words_of("n=1\nwhile [ -f lock$n ]; do n=2; done\nrun n=$n")[1:]
    assert word.missing


def test_files_beside_the_script_are_read_and_others_are_named(tmp_path):
    (tmp_path / "env.sh").write_text("NODES=6\n")
    (tmp_path.parent / "outside.sh").write_text("NODES=7\n")
    found = read_script("source env.sh\n. ../outside.sh\nrun n=$NODES", "script.sh", {}, tmp_path)
    assert found.commands[0].words[1].value == "n=6"
    assert found.unread == ("../outside.sh",)


def test_nothing_is_run(tmp_path):
    text = f"touch {tmp_path}/a\nx=$(touch {tmp_path}/b)\necho hi > {tmp_path}/c\nrun x"
    read_script(text, "script.sh", {}, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=aaaaaaaaaaaaaaaa\n" + "A=$A$A\n" * 26 + "run $A", "more than 1,048,576 characters"),
        ("A=(x x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + "run", "more than 1,048,576 characters"),
        ("A=('' '')\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + "run", "more than 1,048,576 characters"),
        ("while true; do :; done", "loop without end"),
        ("f() { f; }\nf", "is there a cycle"),
        ("a=b\nb=a\nrun $((a))", "is there a cycle"),
        ("CMD='eval $CMD'\neval $CMD", "is there a cycle"),
        ("run ${" + "x:-${" * 5_000, "opens more than 4,000"),
        ("run " + "$(" * 1_900 + "echo" + ")" * 1_900, "exceeded max depth"),
        ("run $((" + "(" * 1_500 + "1" + ")" * 1_500 + "))", "nested"),
        ("run " + "x" * 70_000, "larger than 64 KiB"),
        ("run $((1 / 0))", "divides by zero"),
        ("run $((1 << 200))", "leaves 64 bits"),
        ("run $((9999999999 * 9999999999))", "leaves 64 bits"),
        ("if true", "not a shell script: "),
        ("echo 'unclosed", "not a shell script: "),
        ("select x in a b; do :; done", "is not understood here"),
    ],
)
def test_what_grows_or_is_no_script_is_one_error(text, message):
    """The first takes 7 GB when it is expanded without a bound."""
    with pytest.raises(FileFormatError, match=message) as error:
        read_script(text, "script.sh", {})
    assert str(error.value).startswith("script.sh: ")
    assert len(str(error.value)) < 400
