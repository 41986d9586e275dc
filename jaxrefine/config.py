"""The command's options. These dataclasses are the truth; the YAML groups under ``conf`` only choose among them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING


@dataclass
class TaskConfig:
    """Which task."""

    # car_racing | door | module:function, which makes a task of your own (the README shows one)
    name: str = MISSING
    # a change of the environment that the model is not told of; car_racing: stock | slick | pull | delay | worn
    condition: str = "stock"
    # what the model is told: accurate | paper (the original description, which says less and is wrong in one place)
    text: str = "accurate"
    # another demonstration than the condition's own: a .parquet, .csv or .npz file
    demonstration: str | None = None


@dataclass
class MethodConfig:
    """Which row of the comparison table."""

    # refine | zero_shot | best_of_n | mlp
    name: str = MISSING
    # best_of_n: programs that are written, from the same request
    n: int = 9
    # mlp: sizes of its hidden layers
    hidden: list[int] = field(default_factory=lambda: [64, 64])


@dataclass
class LLMConfig:
    """Who answers."""

    # transcript | openai | mailbox | scripted
    provider: str = MISSING
    # which recorded conversation, or which independent one this is
    chain: str = "0"
    # transcript: a recording of your own (.jsonl); mailbox: its folder; scripted: replies (.jsonl or a folder)
    path: str | None = None
    # transcript: whether a prompt that differs from the recorded one is an error
    strict: bool = False
    model: str | None = None
    base_url: str | None = None
    # the environment variable that holds the key
    api_key_env: str = "OPENAI_API_KEY"
    # chat | responses
    api: str = "chat"
    # low | medium | high, for models that reason
    reasoning_effort: str | None = None
    temperature: float | None = None
    max_output_tokens: int | None = None
    # seconds for one request; mailbox: for one reply, null waits for ever
    timeout: float | None = None
    max_retries: int = 5
    # what the model may cost, checked before every call and across resumes; null for no limit
    max_calls: int | None = None
    # input and output together
    max_tokens: int | None = None
    # US dollars, by the price table
    max_cost: float | None = None
    # a price table of your own, TOML
    prices: str | None = None


@dataclass
class RefineConfig:
    """The refinement loop."""

    # revisions after the first program, at most
    rounds: int = 6
    # regenerations of one program or analysis that fails, at most
    regenerations: int = 5
    # times the model may ask for more analyses of one table
    more_analyses: int = 3
    # rollouts in the table that the analyses see; half take the mean action, half sample
    rollouts: int = 64
    # what a decision is shown: analysis (results of the model's own analyses of the table) | table (one rollout, as
    # CSV) | return_only (the rollouts' returns) | none
    feedback: str = "analysis"
    # which revisions are kept: validate (those not worse on validation episodes, beyond noise) | always (the paper)
    accept: str = "validate"
    # with feedback=analysis: also show checks that need no model, among them an ablation of every latent
    battery: bool = True
    # episodes that are driven again for each latent, held at its mean
    ablated: int = 8
    # with feedback=table: the most characters of CSV, in thousands
    table_kb: int = 60


@dataclass
class FitConfig:
    """Imitation learning."""

    learning_rate: float = 0.03
    # examples per update
    batch_size: int = 512
    # the most updates
    updates: int = 1000
    # share of the demonstration held out to measure the validation likelihood
    validation_fraction: float = 0.1
    # updates without improvement after which a fit has converged
    patience: int = 300


@dataclass
class RLConfig:
    """Reinforcement learning of the best round's program, by windowed GSPO."""

    # episodes of each seed; several budgets, such as [400, 2000], are trained apart; [] for none
    resets: list[int] = field(default_factory=list)
    # independent seeds of each budget, all at once
    seeds: int = 10
    # where they start: best (all from the round's policy) | own (each from an imitation fit of its own)
    start: str = "best"
    # looks at the policy on the way: at the test episodes, for the learning curve alone, and with keep=best at the
    # validation episodes
    looks: int = 10
    # which parameters of a seed are kept: last (the paper) | best (of the looks, on validation episodes; the start is
    # one of them)
    keep: str = "last"
    learning_rate: float = 0.007
    # how far from 1 a likelihood ratio still has a gradient
    clip: float = 0.2
    # steps whose likelihoods one ratio multiplies
    window: int = 150
    # coefficient of the entropy bonus at first; it falls linearly to zero
    entropy: float = 0.01
    # per step
    discount: float = 0.98
    # initial conditions of one update, and episodes from each, which are compared with each other
    groups: int = 1
    episodes: int = 20
    # gradient steps on each batch
    epochs: int = 3
    # product (the paper) | length_normalised (GSPO's mean over the window)
    ratio: str = "product"
    # which steps are compared: start (the same step of episodes with the same start) | state (similar states)
    grouping: str = "start"
    # with grouping=state: into how many cells a group's states are sorted
    anchors: int = 100
    # null for no limit: absolute log-ratio; KL divergence of a step, nats; share of clipped ratios
    log_ratio_limit: float | None = None
    kl_stop: float | None = None
    clip_stop: float | None = None
    # fewest episodes still running at a step for its advantages to count
    survivors: int = 1


@dataclass
class AnalysisConfig:
    """Limits on a process that runs the model's analyses."""

    # seconds of wall clock
    wall_s: float = 60.0
    memory_mb: int = 4096
    # of printed results
    output_kb: int = 24


@dataclass
class WorkerConfig:
    """Limits on the process that holds the model's programs."""

    # of resident memory; null for three quarters of the machine's
    memory_mb: int | None = None
    # seconds that checking a program may take
    check_s: float = 300.0
    # seconds that a fit, an evaluation or a rollout may take; null for no limit
    call_s: float | None = None


@dataclass
class SinksConfig:
    """The report's numbers for other viewers, written at the end of a run."""

    # event files in the run directory's `tensorboard` (needs the package tensorboardX)
    tensorboard: bool = False
    # an offline run of Weights & Biases in the run directory's `wandb` (needs the package wandb); sends nothing
    wandb: bool = False


@dataclass
class Config:
    """Everything a run is made of."""

    task: TaskConfig = field(default_factory=TaskConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    llm: LLMConfig = field(default_factory=LLMConfig)
    refine: RefineConfig = field(default_factory=RefineConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    analysis: AnalysisConfig = field(default_factory=AnalysisConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    sinks: SinksConfig = field(default_factory=SinksConfig)
    # what holds the model's code: auto (the strongest that this machine has) | strong (refuse to run on less than
    # bubblewrap or Landlock) | limits (on time, memory and output alone)
    sandbox: str = "auto"
    # independent fits of every program, all at once; the best on validation episodes is the round's policy
    seeds: int = 4
    # root of all randomness
    seed: int = 0
    # pictures of every round for its report: the paths and a short film of its best, median and worst of 16 episodes
    film: bool = True
    # a run directory to continue, or to make; null makes a new one under `out`
    run: str | None = None
    # where new run directories go
    out: str = "runs"


def register() -> None:
    """Tell Hydra about the options; the groups' files name these as their schemas."""
    store = ConfigStore.instance()
    store.store(name="jaxrefine_schema", node=Config)
