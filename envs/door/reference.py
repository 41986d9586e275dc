"""Door Opening's reference: Meta-World's door-open-v3 itself, driven from here.

Meta-World needs another MuJoCo than MJX does, so it lives in a virtual environment of its own, which
`make_environment` makes, and a process there (``metaworld_process.py``) is spoken to over a pipe. Where its doors
stand needs neither: `door_positions`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from envs.door.schema import HANDLE, TARGET

NAME = "door-open-v3"
MAX_STEPS = 500
REQUIREMENTS = ("metaworld==3.1.1", "mujoco==3.3.0", "gymnasium==1.4.0", "numpy==2.4.6", "packaging")

DOOR_LOW = (0.0, 0.85, 0.15)
DOOR_HIGH = (0.1, 0.95, 0.15)
TARGET_OFFSET = (-0.3, -0.45, 0.0)

Policy = Callable[["Moment"], Any]


def door_positions(seeds: Sequence[int]) -> Float[np.ndarray, "episodes 3"]:
    """Where Meta-World puts the door, metres, in the episode of each seed: ``env.seed(seed)``, then ``env.reset()``.

    A reset draws twice and keeps the second. The target of the handle is `TARGET_OFFSET` away.
    """
    return np.stack([np.random.default_rng(int(seed)).uniform(DOOR_LOW, DOOR_HIGH, (2, 3))[1] for seed in seeds])


@dataclass(frozen=True)
class Moment:
    """What holds after a reset or a step.

    Attributes:
        observation: the 39 numbers, the target among them.
        reward: of the step that led here; 0 after a reset.
        success: whether the handle is within 8 cm of the target along x.
        door: position of the door's body, metres.
        qpos: seven arm joints, rad; two fingers, m; the door's hinge, rad, 0 when shut and negative when open.
        qvel: their rates.
        mocap: where the hand is drawn to, metres.
        scripted: what Meta-World's own policy would do next, clipped to [-1, 1].
    """

    observation: Float[np.ndarray, " 39"]
    reward: float
    success: bool
    door: Float[np.ndarray, " 3"]
    qpos: Float[np.ndarray, " 10"]
    qvel: Float[np.ndarray, " 10"]
    mocap: Float[np.ndarray, " 3"]
    scripted: Float[np.ndarray, " 4"]

    @property
    def distance(self) -> float:
        """From the handle to its target, metres."""
        return float(np.linalg.norm(self.observation[HANDLE] - self.observation[TARGET]))


@dataclass(frozen=True)
class Episode:
    """One episode: moment t is before step t, and one moment more is after the last step.

    Attributes:
        seed: Meta-World's.
        door: as in `Moment`, all the other entries too.
        actions: as sent, that is, clipped, and float32 as Meta-World's action space has it.
    """

    seed: int
    door: Float[np.ndarray, " 3"]
    actions: Float[np.ndarray, "steps 4"]
    rewards: Float[np.ndarray, " steps"]
    successes: Bool[np.ndarray, " steps"]
    observations: Float[np.ndarray, "moments 39"]
    qpos: Float[np.ndarray, "moments 10"]
    qvel: Float[np.ndarray, "moments 10"]
    mocap: Float[np.ndarray, "moments 3"]

    @property
    def total(self) -> float:
        """The return: the sum of the rewards."""
        return float(np.sum(self.rewards))

    @property
    def distances(self) -> Float[np.ndarray, " moments"]:
        """From the handle to its target, metres."""
        distances: np.ndarray = np.linalg.norm(self.observations[:, HANDLE] - self.observations[:, TARGET], axis=1)
        return distances

    @property
    def steps_to_success(self) -> int | None:
        """How many steps it took until the first success, if there was one."""
        return int(np.argmax(self.successes)) + 1 if self.successes.any() else None


def default_environment() -> Path:
    """``$XDG_CACHE_HOME/jaxrefine/metaworld-3.1.1``, or the same below ``~/.cache``."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # relative ones are to be ignored, says the XDG specification
        root = Path.home() / ".cache"
    return root / "jaxrefine" / "metaworld-3.1.1"


def make_environment(folder: Path) -> None:
    """Make the reference's virtual environment; installs `REQUIREMENTS` with pip.

    Raises:
        FileExistsError: something is there already.
        subprocess.CalledProcessError: the environment could not be made, or pip could not install; nothing is left.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; remove it, or give another folder")
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(_python(folder)), "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    except BaseException:
        # half an environment would be taken for a whole one
        shutil.rmtree(folder, ignore_errors=True)
        raise


class Reference:
    """Meta-World in its own process; a context manager.

    Args:
        environment: folder of the virtual environment; `default_environment` when absent.

    Raises:
        ImportError: there is no such environment; the message says how to make it.
    """

    def __init__(self, environment: Path | None = None) -> None:
        python = _python(default_environment() if environment is None else environment)
        if not python.exists():
            raise ImportError(
                f"the reference {NAME} needs a virtual environment with Meta-World, and there is no {python}; make it "
                f"with `python -m envs.door.reference` and the folder, if it should be elsewhere"
            )
        script = Path(__file__).with_name("metaworld_process.py")
        self._process = subprocess.Popen(
            [str(python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> Reference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def versions(self) -> dict[str, str]:
        """Name of the reference and versions of what it consists of."""
        return self._ask(do="about")

    def model(self) -> dict[str, Any]:
        """The compiled model's numbers, and the state in which every episode starts."""
        return self._ask(do="model")

    def reset(self, seed: int, mocap_offset: Sequence[float] = (0.0, 0.0, 0.0)) -> Moment:
        """Start Meta-World's episode of this seed, the hand's target displaced by some metres."""
        return _moment(self._ask(do="reset", seed=int(seed), mocap_offset=list(mocap_offset)))

    def step(self, action: Any) -> Moment:
        """Take one control step of 12.5 ms.

        Args:
            action: four numbers; Meta-World clips them to [-1, 1].
        """
        return _moment(self._ask(do="step", action=np.asarray(action, np.float64).tolist()))

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of the reference {NAME} ended; it says why on the standard error")
        found: dict[str, Any] = json.loads(answer)
        return found


def run_episode(
    policy: Policy,
    seed: int,
    reference: Reference,
    steps: int = MAX_STEPS,
    mocap_offset: Sequence[float] = (0.0, 0.0, 0.0),
) -> Episode:
    """Drive one episode.

    Args:
        policy: the `Moment` before a step -> its action, four numbers, which are clipped.
        seed: Meta-World's.
        reference: to drive in.
        steps: to take; there is no earlier end.
        mocap_offset: as in `Reference.reset`.
    """
    moments = [reference.reset(seed, mocap_offset)]
    actions = []
    for _ in range(steps):
        action = np.clip(np.asarray(policy(moments[-1]), np.float32), -1, 1)
        actions.append(action)
        moments.append(reference.step(action))
    return Episode(
        seed=seed,
        door=moments[0].door,
        actions=np.stack(actions),
        rewards=np.array([m.reward for m in moments[1:]]),
        successes=np.array([m.success for m in moments[1:]]),
        observations=np.stack([m.observation for m in moments]),
        qpos=np.stack([m.qpos for m in moments]),
        qvel=np.stack([m.qvel for m in moments]),
        mocap=np.stack([m.mocap for m in moments]),
    )


def _moment(answer: dict[str, Any]) -> Moment:
    fields: dict[str, Any] = {k: np.array(v, float) if isinstance(v, list) else v for k, v in answer.items()}
    return Moment(**fields)


def _python(environment: Path) -> Path:
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


if __name__ == "__main__":
    make_environment(Path(sys.argv[1]) if len(sys.argv) > 1 else default_environment())
