"""The language-model client that the options name."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from jaxrefine.config import LLMConfig
from jaxrefine.errors import UserError
from jaxrefine.llm import Budget, Client, MailboxClient, OpenAIClient, ScriptedClient, TranscriptClient, read_prices
from jaxrefine.llm.client import Notice


def make_client(config: LLMConfig, task: str, run: Path, on_notice: Notice) -> Client:
    """Build the client; nothing is asked yet.

    Args:
        config: the options under ``llm``.
        task: whose recorded conversations are played.
        run: the run directory, where a mailbox lies by default.
        on_notice: told what a person should know.

    Raises:
        UserError: an option is missing or wrong, or there is no such recording.
    """
    match config.provider:
        case "transcript":
            path = Path(config.path) if config.path else _bundled(task, config.chain)
            return TranscriptClient(path, strict=config.strict, on_notice=on_notice)
        case "openai":
            if not config.model:
                raise UserError("llm=openai needs llm.model, e.g. llm.model=gpt-5-mini")
            if config.api not in ("chat", "responses"):
                raise UserError(f"llm.api is {config.api!r}; it must be chat or responses")
            return OpenAIClient(
                config.model,
                base_url=config.base_url,
                api_key_env=config.api_key_env,
                timeout=config.timeout or 600.0,
                max_retries=config.max_retries,
                reasoning_effort=config.reasoning_effort,
                temperature=config.temperature,
                max_output_tokens=config.max_output_tokens,
                api="chat" if config.api == "chat" else "responses",
            )
        case "mailbox":
            folder = Path(config.path) if config.path else run / "mailbox"
            model = config.model or "unknown (mailbox)"
            return MailboxClient(folder, timeout_s=config.timeout, on_notice=on_notice, model=model)
        case "scripted":
            if not config.path:
                raise UserError("llm=scripted needs llm.path: a .jsonl file of replies, or a folder of NN.md")
            return ScriptedClient.from_path(Path(config.path))
    raise UserError(f"llm.provider is {config.provider!r}; it must be transcript, openai, mailbox or scripted")


def make_budget(config: LLMConfig) -> Budget:
    """The limits that the options set."""
    prices = read_prices(Path(config.prices) if config.prices else None)
    return Budget(config.max_calls, config.max_tokens, config.max_cost, prices)


def _bundled(task: str, chain: str) -> Path:
    folder = Path(str(files("jaxrefine").joinpath("transcripts", task)))
    path = folder / f"{chain}.jsonl"
    if not path.is_file():
        there = sorted(p.stem for p in folder.glob("*.jsonl"))
        chains = f"there are: {', '.join(there)}" if there else "there is none for this task"
        raise UserError(
            f"no recorded conversation {chain!r} comes with the task {task!r}; {chains}. Choose llm.chain among "
            "them, play your own with llm.path=FILE.jsonl, or ask a model with llm=openai or llm=mailbox"
        )
    return path
