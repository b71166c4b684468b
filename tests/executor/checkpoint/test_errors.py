"""Protects what a run says when the place of its checkpoints fails it: one message at whatever step, and what was saved
before is kept. Folders are really read-only: the child process has no right to write where permissions say no.
"""

import errno
import itertools
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.rank_pool import run_on_ranks
from executor.controller.controller import Controller
from executor.controller.models import build_models
from executor.controller.pools import resource_pools
from executor.launch.local import LocalLauncher
from executor.recovery.load import checkpoints_at, groups_of, latest, load
from executor.recovery.saver import Saver
from executor.run import run
from executor.run_settings import hyperparameters
from profiles.errors import InputError
from tests.draws import STRIDE
from tests.executor.plans import colocated, config, job

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).parents[3]
STEPS = {"open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"}


class FullDisk:
    """Fails one step in a folder: reading, making, syncing, renaming or deleting a file or folder, in any thread."""

    def __init__(self, root):
        self._root, self._left, self._lock, self._sync = str(root), 0, threading.Lock(), os.fsync
        sys.addaudithook(self._hear)
        os.fsync = self._synced  # audit hooks do not hear of it

    def fail(self, step):
        """Fail the ``step``-th from now on; 0 fails none."""
        self._left = step

    @property
    def has_failed(self):
        return self._left == 0

    def _hear(self, event, arguments):
        paths = [str(path) for path in arguments[:1] if isinstance(path, str | Path)]
        if event in STEPS and any(path.startswith(self._root) or "/" not in path for path in paths):
            self._step(paths[0])

    def _synced(self, handle):
        self._step(str(handle))
        self._sync(handle)

    def _step(self, path):
        with self._lock:
            if self._left == 0:
                return
            self._left -= 1
            if self._left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def saves_on_a_full_disk(rank, root):
    """A save for each ``STRIDE``-th step, which fails there: what it raised, and which checkpoint loads after it."""
    plan, settings, found = colocated("grpo"), config(launcher="local"), []
    with Controller(LocalLauncher()) as controller:
        controller.start(resource_pools(plan))
        models = build_models(controller, plan, settings, hyperparameters(job("grpo"), settings, plan))
        models.init()
        disk = FullDisk(root)
        assert not saved(models, controller, root, 1)
        for step in itertools.count(1, STRIDE):
            before = latest(root).manifest.iteration
            disk.fail(step)
            error = saved(models, controller, root, before + 1)
            if not disk.has_failed:
                break  # no save has so many steps
            found.append((error, before, load(models, controller, checkpoints_at(root, str)[0])))
    return found


def saved(models, controller, root, iteration):
    """Save as a run does; what went wrong, by its kind."""
    error = ""
    try:
        saver = Saver(models, controller, Path(root), keep=1, identity={})
        try:
            saver.begin(iteration)
            saver.publish()
            saver.wait()
        finally:
            saver.close()
    except InputError as found:
        error = str(found)
    for group in groups_of(models).values():
        for future in group.finish_save():
            try:
                future.wait()
            except InputError:
                error = error or "told later"
    return error


@pytest.mark.thorough
def test_whatever_step_of_a_save_fails_one_message_says_so_and_the_one_before_is_kept(tmp_path):
    """Only the newest one is kept: the hardest case. Any other error ends the child, and this test."""
    (found,) = run_on_ranks(1, saves_on_a_full_disk, str(tmp_path))
    assert len(found) >= 20 // STRIDE
    for error, before, loadable in found:
        assert loadable in (before, before + 1)
        assert error or loadable == before + 1  # nobody is told of a save that is none
        assert not error or "No space left on device" in error
    assert sum(bool(error) for error, _, _ in found) >= 15 // STRIDE


CHILD = """
import json, os, stat, sys
from pathlib import Path
from typer.testing import CliRunner
from executor.run import run
from hybridmap.cli import app
from profiles.errors import InputError
from tests.executor.plans import colocated, config, job
file, folder, out = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
folder.chmod(0o555)
try:
    (folder / "written").touch()
    raise SystemExit("permissions do not hold in this process")
except PermissionError:
    pass
told = {}
for name, mode, resume in (("begin", 0o555, []), ("go on", 0o555, ["--resume"]), ("list", 0, ["--resume"])):
    folder.chmod(mode)
    done = CliRunner().invoke(app, ["run", file, "--iterations", "3", "--out", out, *resume])
    told[name] = done.exit_code, done.stdout, done.stderr
def close(iteration, metrics):
    folder.chmod(0o555)
folder.chmod(0o755)
settings = config(launcher="local", checkpoint={"every": 1, "keep": 2, "dir": str(folder)}, learning_rate=3e-3)
try:
    run(job("grpo", samples=2), colocated("grpo"), settings, out, 4, resume=True, watch=close)
except InputError as error:
    told["meanwhile"] = str(error)
folder.chmod(0o755)
print(json.dumps(told))
"""

DROPPED = """
import ctypes, os, sys
for capability in (1, 2):  # to write, and to read, what permissions forbid: root has both
    assert ctypes.CDLL(None, use_errno=True).prctl(24, capability, 0, 0, 0) == 0 or os.geteuid(), "cannot give it up"
os.execv(sys.executable, [sys.executable, "-W", "ignore", *sys.argv[1:]])
"""


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """A folder with a checkpoint, before and after runs in a process for which it is read-only; what these said."""
    base = tmp_path_factory.mktemp("closed")
    folder = base / "saved"
    settings = config(launcher="local", checkpoint={"every": 1, "dir": str(folder)}, learning_rate=3e-3)
    run(job("grpo", samples=2), colocated("grpo"), settings, base / "out", 2)
    before = contents(folder)
    file, plan = base / "run.yaml", base / "plan.json"
    plan.write_text(colocated("grpo").model_dump_json())
    section = {"plan": str(plan), **settings.model_dump(mode="json", exclude_defaults=True)}
    document = {
        "algorithm": "grpo",
        "models": {"actor": str(ROOT / "examples" / "run" / "tiny-config.json")},
        "workload": {"prompts": 8, "samples_per_prompt": 2, "prompt_length": 4, "response_length": 3, "minibatches": 1},
        "cluster": [{"device": "a100-80gb-sxm", "nodes": 1}],
        "run": section,
    }
    file.write_text(json.dumps(document))
    command = [sys.executable, "-c", DROPPED, "-c", CHILD, str(file), str(folder), str(base / "out")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return before, contents(folder), json.loads(done.stdout), folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("begin", "--resume continues from the newest"),  # there are checkpoints: read, and no place for others
        ("go on", "checkpoints cannot be saved here: Permission denied"),
        ("list", "cannot be read: Permission denied"),
    ],
)
def test_a_folder_that_is_closed_ends_the_command_with_one_message(how, said, closed):
    status, stdout, stderr = closed[2][how]
    assert (status, stdout) == (2, "")
    (line,) = stderr.splitlines()
    assert line.startswith("Error: ")
    assert said in line
    assert str(closed[3]) in line


@pytest.mark.slow
def test_a_folder_that_is_closed_meanwhile_ends_the_run_and_keeps_what_it_has(closed):
    """The iteration after the checkpoint was made and could not be saved."""
    before, after, told, folder = closed
    assert "Permission denied" in told["meanwhile"]
    assert str(folder) in told["meanwhile"]
    assert {name: after[name] for name in before} == before
    assert latest(folder).manifest.iteration == 2


def test_a_place_that_is_no_folder_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "file").write_text("")
    mode = stat.S_IMODE(tmp_path.stat().st_mode)
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/self/checkpoints")):
        settings = config(launcher="local", checkpoint={"every": 1, "dir": str(place)})
        started = []
        with pytest.raises(InputError, match=rf"{place}: checkpoints cannot be saved here: .*run.checkpoint.dir"):
            run(
                job("grpo", samples=2),
                colocated("grpo"),
                settings,
                tmp_path / "out",
                1,
                watch=lambda *found, started=started: started.append(found),
            )
        assert not started
    assert not (tmp_path / "out").exists()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode
