"""Asking the model, durably: an answer is on the disk before anything is done with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxrefine.llm import Completion, Recorder, Request, UnusableReplyError
from jaxrefine.methods.prompting import messages
from jaxrefine.run import RunDirectory
from jaxrefine.task import Task

_LABELS = {
    "generate": "model writes the program",
    "diagnose": "model writes analyses",
    "revise": "model decides",
    "repair_program": "model mends the program",
    "repair_analysis": "model mends the analyses",
    "repair_reply": "model answers again",
}


@dataclass
class Conversation:
    """All requests of one run.

    Attributes:
        run: where the steps are logged.
        client: who answers; it answers again from the run's own transcript what was answered before.
        task: what the requests are about.
        chain: the conversation's name.
        numbers: what the prompts say of the options.
    """

    run: RunDirectory
    client: Recorder
    task: Task
    chain: str
    numbers: Mapping[str, str]
    _asked: Counter[tuple[str, int]] = field(default_factory=Counter)

    def ask(self, purpose: str, round: int, **fields: str) -> tuple[str, str]:
        """Ask for one purpose.

        Args:
            purpose: the template's name.
            round: the refinement round.
            fields: what the template asks for.

        Returns:
            The reply's text, empty when the model gave none, and the request's.
        """
        # a resumed run asks everything in the same order, so the count names the same request again
        attempt = self._asked[purpose, round]
        self._asked[purpose, round] += 1
        request = Request(purpose, round, self.chain, messages(self.task, purpose, {**self.numbers, **fields}), attempt)
        answers: list[Completion] = []

        def call() -> dict[str, str]:
            try:
                answers.append(self.client.complete(request))
            except UnusableReplyError as error:
                return {"line": str(error), "unusable": str(error)}
            return {"line": _describe(answers[0])}

        suffix = f"_{attempt}" if attempt else ""
        result = self.run.step(f"round_{round}/{purpose}{suffix}", call, label=_LABELS[purpose])
        body = request.messages[-1].content
        if "unusable" in result:
            return "", body
        # a step that an earlier process finished: its answer comes from the run's transcript
        completion = answers[0] if answers else self.client.recall(request)
        return completion.text, body


def _describe(completion: Completion) -> str:
    usage = completion.usage
    about = "about " if usage.estimated else ""
    cut = ", cut off" if completion.finish_reason == "length" else ""
    return f"{about}{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out ({completion.model}){cut}"
