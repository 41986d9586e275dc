"""What a round is made of: a program that passes its checks, its fit, its evaluation, its rollouts and its pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from jaxrefine.config import Config
from jaxrefine.errors import UserError
from jaxrefine.methods.acceptance import compare, recorded_course
from jaxrefine.methods.conversation import Conversation
from jaxrefine.methods.replies import ReplyError, find_program
from jaxrefine.run import RunDirectory
from jaxrefine.sandbox import Backend
from jaxrefine.task import Task
from jaxrefine.worker import ProcessWorker, ProgramError, Worker

_FILMED = 16  # episodes that are driven for a round's pictures, of which three are shown


@dataclass
class Round:
    """One round as far as it has come.

    Attributes:
        number: from 0.
        source: the program that passed every check.
        check: what ``Worker.check`` said of it.
        fit: what ``Worker.fit`` said.
        evaluation: what ``Worker.evaluate`` said.
        regenerations: programs and analyses that had to be written again.
        analyses: modules of analyses that were run.
        resets: episodes that choosing and analysing cost.
        env_steps: environment steps, evaluation included.
        decision: how it ended.
        accepted: whether it was kept.
        against_best: of a revision, how it compares with the best one before, episode by episode.
        changes: of a revision, the model's own account.
        evident: whether what its decision is shown has been made.
        analyses_text: the analyses and their results, as prompts show them.
        battery: what ``Worker.battery`` said.
        excerpt: what ``Worker.excerpt`` said.
        rolled_out: what ``Worker.rollout`` said.
        decisions: how often it has been decided on.
    """

    number: int
    source: str = ""
    check: dict[str, Any] = field(default_factory=dict)
    fit: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    regenerations: int = 0
    analyses: int = 0
    resets: int = 0
    env_steps: int = 0
    decision: str = "failed"
    accepted: bool = True
    against_best: dict[str, Any] | None = None
    changes: str = ""
    evident: bool = False
    analyses_text: str = ""
    battery: dict[str, Any] | None = None
    excerpt: dict[str, Any] | None = None
    rolled_out: dict[str, Any] = field(default_factory=dict)
    decisions: int = 0


class RoundFailedError(Exception):
    """A round cannot go on; the text says why. Earlier rounds stand."""


@dataclass
class Rounds:
    """Carries rounds out, each part a durable step of the run.

    Attributes:
        run: the run directory.
        task: the task.
        config: all options.
        worker: the door to the device.
        conversation: the model.
        backend: what holds the analyses' jail.
    """

    run: RunDirectory
    task: Task
    config: Config
    worker: Worker | ProcessWorker
    conversation: Conversation
    backend: Backend

    def first(self, number: int = 0) -> Round:
        """A program from the task's text alone, fitted and evaluated."""
        self.run.emit("round_started", round=number)
        reply, request = self.conversation.ask("generate", number)
        return self._complete(Round(number), reply, request, None)

    def builtin(self, source: str) -> Round:
        """Round 0 with a program of our own, which no model is asked for.

        Raises:
            RoundFailedError: it could not be fitted.
        """
        self.run.emit("round_started", round=0)
        only = Round(0)
        for carry_out in (self._check, self._fit, self._evaluate):
            if problem := carry_out(only, source, 0):
                raise RoundFailedError(problem)
        self._film(only)
        return only

    def revised(self, number: int, reply: str, before: Round) -> Round:
        """A round whose program a decision on an earlier one brought."""
        self.run.emit("round_started", round=number)
        return self._complete(Round(number), reply, "", before)

    def _complete(self, current: Round, reply: str, request: str, before: Round | None) -> Round:
        self._program(current, reply, request)
        self._structure(current, before)
        self._film(current)
        return current

    def _program(self, current: Round, reply: str, request: str) -> None:
        """Check, fit and evaluate the reply's program; what fails goes back to the model as one paragraph."""
        k, problems = current.number, []
        for attempt in range(self.config.refine.regenerations + 1):
            source = ""
            try:
                source = find_program(reply, self.task.class_name)
                problem = (
                    self._check(current, source, attempt)
                    or self._fit(current, source, attempt)
                    or self._evaluate(current, source, attempt)
                )
            except ReplyError as error:
                problem = str(error)
            if problem is None:
                self._hold_to_its_file(current)
                return
            problems.append(f"attempt {attempt}: {problem}")
            self.run.write_text(f"round_{k}/checks.txt", "\n\n".join(problems) + "\n")
            if attempt == self.config.refine.regenerations:
                break
            current.regenerations += 1
            if source:
                reply, _ = self.conversation.ask("repair_program", k, program=source.strip(), problem=problem)
            else:
                fields = {"request": request, "reply": reply, "problem": problem}
                reply, _ = self.conversation.ask("repair_reply", k, **fields)
        raise RoundFailedError(
            f"round {k} has no usable program after {len(problems)} attempts; the last problem: "
            f"{problems[-1].split(': ', 1)[1]} All are in {self.run.path / f'round_{k}' / 'checks.txt'}"
        )

    def _structure(self, current: Round, before: Round | None) -> None:
        """The program's semantic graph, and what changed in it, into files."""
        folder = f"round_{current.number}"

        def structure() -> dict[str, Any]:
            try:
                found = self.worker.structure(current.source, None if before is None else before.source)
            except ProgramError as error:  # only a record: what has been measured stands without it
                return {"line": f"could not be read: {error}"}
            self.run.write_json(f"{folder}/graph.json", found["graph"])
            if before is None:
                return {"line": f"{len(found['graph']['summary']['latents'])} latents in the graph"}
            self.run.write_json(f"{folder}/graph_changes.json", {"before": before.number, **found["changes"]})
            self.run.write_text(f"{folder}/graph_changes.txt", found["text"] + "\n")
            latents = found["changes"]["latents"]
            counts = ", ".join(f"{len(latents[key])} {key}" for key in ("added", "removed", "rewired"))
            return {"line": f"latents against round {before.number}: {counts}"}

        self.step(current, "structure", structure, "read the structure")

    def _film(self, current: Round) -> None:
        """Three episodes for people to look at, into files; without them the round stands all the same."""
        if not self.config.film:
            return

        def film() -> dict[str, Any]:
            try:
                found = self.worker.film(current.source, self.run.round_path(current.number), _FILMED)
            except UserError:  # a full disk, a lost file: what comes next would meet it too
                raise
            except Exception as error:
                said = str(error).strip() or type(error).__name__
                return {"env_steps": 0, "line": f"could not be made: {said.splitlines()[-1][:300]}"}
            if not found["driven"]:
                return found | {"line": "none: the environment has neither render nor place and outline"}
            return found | {"line": f"{len(found['chosen'])} of {found['driven']} episodes, {found['frames']} frames"}

        # episodes that nothing is chosen by: steps, but no resets
        current.env_steps += self.step(current, "film", film, "make pictures")["env_steps"]

    def _hold_to_its_file(self, current: Round) -> None:
        """A round's program is what its file says: people read it there, and other commands run it from there."""
        name = f"round_{current.number}/policy.py"
        if self.run.read_text(name) != current.source:
            raise UserError(
                f"{self.run.file(name)} is not the program that this run checked and fitted: it was changed since. "
                "Restore it, or start a new run directory"
            )

    def _check(self, current: Round, source: str, attempt: int) -> str | None:
        def check() -> dict[str, Any]:
            self.run.write_text(f"round_{current.number}/policy.py", source)
            try:
                found = self.worker.check(source)
            except ProgramError as error:
                return {"problem": str(error), "line": f"rejected: {error}"}
            latents, weights = len(found["latents"]), len(found["weights"])
            return found | {"line": f"{found['parameters']} parameters, {latents} latents, {weights} weights reported"}

        result = self.step(current, "check", check, "check the program", attempt)
        if "problem" not in result:
            current.source, current.check = source, result
        return result.get("problem")

    def _fit(self, current: Round, source: str, attempt: int) -> str | None:
        def fit() -> dict[str, Any]:
            folder = self.run.round_path(current.number)
            try:
                found = self.worker.fit(source, self.config.seeds, folder)
            except ProgramError as error:
                return {"problem": str(error), "line": f"failed: {error}"}
            self.run.write_json(f"round_{current.number}/fit.json", found["curves"])
            nll = [value for value in found["validation_nll"] if value is not None]
            spread = f"{min(nll):.3f} ... {max(nll):.3f}" if nll else "not finite"
            skipped = sum(found["skipped"])
            beside = f"; {skipped} updates skipped, their gradient was not finite" if skipped else ""
            return {key: value for key, value in found.items() if key != "curves"} | {
                "line": f"{self.config.seeds} seeds, validation NLL {spread} nats a step{beside}"
            }

        result = self.step(current, "fit", fit, "fit to the demonstration", attempt)
        if "problem" not in result:
            current.fit = result
        return result.get("problem")

    def _evaluate(self, current: Round, source: str, attempt: int) -> str | None:
        def evaluate() -> dict[str, Any]:
            try:
                found = self.worker.evaluate(source, self.run.round_path(current.number))
            except ProgramError as error:
                return {"problem": str(error), "line": f"failed: {error}"}
            metric, name = found["metric"], self.task.metric.name
            if metric["mean"] is None:
                return found | {"line": f"{name} is not finite on some test episodes"}
            line = f"{name} {metric['mean']:.4g} ± {metric['std']:.3g} on {metric['n']} test episodes"
            for further in self.task.further_metrics:
                mean = found["further"][further.key]["mean"]
                line += f", {further.name} " + ("not finite" if mean is None else f"{mean:.4g}")
            return found | {"line": line}

        result = self.step(current, "evaluate", evaluate, "evaluate", attempt)
        if "problem" not in result:
            current.evaluation = result
            current.resets += result["episodes"] - result["test_episodes"]
            current.env_steps += result["env_steps"]
        return result.get("problem")

    def roll_out(self, current: Round) -> None:
        """Log rollouts of the round's policy as its table."""

        def roll_out() -> dict[str, Any]:
            found = self.worker.rollout(
                current.source, self.run.round_path(current.number), self.config.refine.rollouts
            )
            return found | {"line": f"{found['episodes']} episodes, {found['rows']:,} rows"}

        current.rolled_out = self.step(current, "rollout", roll_out, "roll out")
        current.resets += current.rolled_out["episodes"]
        current.env_steps += current.rolled_out["rows"]

    def battery(self, current: Round) -> str:
        """The checks that need no model, as text; made once a round."""

        def check() -> dict[str, Any]:
            found = self.worker.battery(
                current.source,
                self.run.round_path(current.number),
                self.config.refine.rollouts,
                current.evaluation["chosen"],
                self.config.refine.ablated,
            )
            self.run.write_text(f"round_{current.number}/battery.txt", found.pop("text"))
            self.run.write_json(f"round_{current.number}/battery.json", found.pop("numbers"))
            return found | {"line": f"{found['latents']} latents held at their means, {found['env_steps']:,} steps"}

        if current.battery is None:
            current.battery = self.step(current, "battery", check, "built-in checks")
            current.resets += current.battery["episodes"]
            current.env_steps += current.battery["env_steps"]
        return self.run.read_text(f"round_{current.number}/battery.txt")

    def excerpt(self, current: Round) -> dict[str, Any]:
        """One rollout of the round's table as CSV, in ``excerpt.csv``."""

        def excerpt() -> dict[str, Any]:
            options = self.config.refine
            folder = self.run.round_path(current.number)
            found = self.worker.excerpt(folder, options.rollouts, options.table_kb * 1000)
            self.run.write_text(f"round_{current.number}/excerpt.csv", found.pop("csv"))
            return found | {"line": f"episode {found['episode']}, {found['rows']} rows"}

        if current.excerpt is None:
            current.excerpt = self.step(current, "excerpt", excerpt, "write one rollout as CSV")
        return current.excerpt

    def best_of(self, done: list[Round]) -> Round:
        """The round that does best on validation episodes; the earlier one of equals."""
        sign = 1 if self.task.metric.better == "higher" else -1
        values = [entry.evaluation["validation"]["mean"] for entry in done]
        ranked = [-math.inf if value is None else sign * value for value in values]
        return done[ranked.index(max(ranked))]

    def judge(self, current: Round, done: list[Round]) -> Round:
        """Compare a revision with the best round before it, and decide whether it is kept.

        Where the rest of the conversation is recorded, it goes on as it did: fits on another device or of other seeds
        may be judged otherwise, and the recorded answers are of the rounds that were kept then.

        Returns:
            The round that the next decision is about: the revision, or the one that it is set aside for.
        """
        best = self.best_of(done)

        def judge() -> dict[str, Any]:
            before, after = (entry.evaluation["validation_values"] for entry in (best, current))
            found = compare(before, after, self.task.metric.better)
            found["best"] = best.number
            line = f"{found['verdict']} round {best.number}: {found['line']}"
            aside = self._aside(found)
            if self.config.refine.accept == "validate" and current.number < self.config.refine.rounds:
                aside, followed = recorded_course(self.conversation.client.ahead, current.number, aside)
                line += f"; {followed}" if followed else ""
            return found | {"line": line, "returns_to": aside}

        found = self.step(current, "judge", judge, "compare with the best so far")
        aside = found.get("returns_to", self._aside(found))  # a run begun by an earlier version has no such entry
        current.accepted = aside is None
        current.against_best = {name: value for name, value in found.items() if name != "returns_to"}
        if aside is None:
            return current
        returned = next((entry for entry in done if entry.number == aside), None)
        if returned is None:
            raise UserError(f"the recorded conversation goes on with round {aside}, which this run does not have")
        return returned

    def _aside(self, found: dict[str, Any]) -> int | None:
        """For which round a judged revision is set aside; None when it is kept."""
        kept = self.config.refine.accept == "always" or found["verdict"] != "worse than"
        return None if kept else int(found["best"])

    def table_facts(self) -> dict[str, str]:
        """What a prompt says of the table."""
        episodes = self.config.refine.rollouts
        by_mean = (episodes + 1) // 2
        return {"episodes": str(episodes), "mean_episodes": str(by_mean), "last_mean_episode": str(by_mean - 1)}

    def step(self, current: Round, name: str, function: Any, label: str, attempt: int = 0) -> dict[str, Any]:
        """A durable step of a round.

        Raises:
            RoundFailedError: the program, which had passed every check, ended its process.
        """
        suffix = f"_{attempt}" if attempt else ""
        try:
            result: dict[str, Any] = self.run.step(f"round_{current.number}/{name}{suffix}", function, label=label)
        except ProgramError as error:  # of a program that has been evaluated: it ended the process this time
            raise RoundFailedError(f"round {current.number} could not go on: {error}") from error
        return result
