"""The comparison bench: its prompts, bookkeeping, report and commands. No figure of time is checked."""

from __future__ import annotations

import dataclasses
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import pytest
from chat_model import write_chat_model
from expertree import Model
from expertree.cli.main import app
from expertree.comparison import plots
from expertree.comparison.drafts import Draft
from expertree.comparison.intervals import median_interval
from expertree.comparison.oracle import RecordedOracle
from expertree.comparison.prompts import CATEGORIES, Prompt, load_prompts, prompts_folder
from expertree.comparison.replay_check import final_trace, replay_findings
from expertree.comparison.report import ReportWriter, markdown, results
from expertree.comparison.runner import Findings, Plan, Run, Runner, windows
from expertree.comparison.settings import PLAIN, Setting, chosen_settings, comparison_settings
from expertree.comparison.speculation_trace import SpeculationTrace
from expertree.comparison.summary import predictor_recall, rows_of
from expertree.errors import Cancelled
from expertree.model import selector_names
from tiny_model import TinyModel
from typer.testing import CliRunner
from waiting import wait_until

FACTS = {"model": "tiny.gguf", "threads": 1, "isa": "scalar", "n_moe_layers": 2}
PROMPTS = [Prompt("chat", "chat-01", "the the the cat"), Prompt("code", "code-01", "this this this")]


@pytest.fixture(scope="module")
def chat_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("compare") / "chat.gguf", arch="qwen3moe")


@pytest.fixture(scope="module")
def loader(chat_path: Path) -> Callable[[str], Model]:
    def load(budget: str) -> Model:
        everything = Model(chat_path, threads=1, n_ctx=2048).experts["all_bytes"]
        ram: str | int = "all" if budget == "all" else int(everything * float(budget[:-1]) / 100)
        return Model(chat_path, threads=1, n_ctx=2048, ram=ram)

    return load


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "prompts": PROMPTS,
        "settings": comparison_settings(8, 2),
        "draft": Draft("scripted:0.9,0.8,0.7"),
        "budgets": ("all", "50%"),
        "n_tokens": 10,
        "rounds": 1,
    }
    return Plan(**{**fields, **changes})


# Prompts.


def test_the_projects_prompts() -> None:
    prompts = load_prompts()
    assert [p.category for p in prompts] == [c for c in CATEGORIES for _ in range(30)]
    assert len({p.id for p in prompts}) == len({p.text for p in prompts}) == 180
    assert all(20 <= len(p.text) < 900 for p in prompts)  # about 200 tokens at most
    assert (prompts_folder() / "README.md").is_file()


def test_prompts_by_category() -> None:
    chosen = load_prompts(categories=["translation", "chat"], per_category=2)
    assert [p.id for p in chosen] == ["translation-01", "translation-02", "chat-01", "chat-02"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("{", r"mine\.jsonl:1: expected"),
        ('{"id": "a"}', "expected"),
        ('{"id": "a", "text": "x"}\n{"id": "b", "text": " "}', r"jsonl:2: the text of b is empty"),
        ('{"id": "a", "text": 3}', "empty"),
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}', "an id occurs twice"),
    ],
)
def test_prompts_that_make_no_sense(lines: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(lines)
    with pytest.raises(expertree.InvalidRequestError, match=message):
        load_prompts(tmp_path)


def test_a_folder_without_prompts(tmp_path: Path) -> None:
    with pytest.raises(expertree.InvalidRequestError, match="no prompts"):
        load_prompts(tmp_path)
    with pytest.raises(expertree.InvalidRequestError, match=r"no category 'poems'.*chat, code"):
        load_prompts(categories=["poems"])


# Rows.


@pytest.mark.parametrize("sweep", ["small", "large"])
def test_every_selector_has_its_rows(sweep: str) -> None:
    rows = comparison_settings(64, 8, sweep)
    assert len({row.name for row in rows}) == len(rows)
    assert {row.select.partition(":")[0] for row in rows if row.select} == set(selector_names()) - {"exhaustive"}
    assert [row.name for row in rows if row.is_oracle] == ["residency (oracle)"]
    assert {row.name for row in rows if not row.is_lossless} == {"moespec:32", "moespec:48"}
    assert {f"chain:{k}" for k in (1, 2, 3, 4)} <= {row.name for row in rows}


def test_moespecs_budget_is_never_below_one_tokens_experts() -> None:
    for n_experts, n_used in ((8, 2), (8, 6), (4, 4), (128, 8), (60, 4)):
        budgets = [int(row.name[8:]) for row in comparison_settings(n_experts, n_used) if not row.is_lossless]
        assert budgets and all(n_used <= budget <= n_experts for budget in budgets)


def test_rows_by_name() -> None:
    rows = comparison_settings(8, 2)
    assert [r.name for r in chosen_settings(["chain", "residency"], rows)] == [
        "chain:1", "chain:2", "chain:3", "chain:4", "residency"
    ]  # fmt: skip
    assert chosen_settings(["chain:7", "all", "all"], rows) == [
        Setting("chain:7", "chain", "chain:7"),
        Setting("all", "all", "all"),
    ]
    with pytest.raises(expertree.InvalidRequestError, match="no row and no selector"):
        chosen_settings(["best"], rows)


# Statistics.


def test_medians_with_their_intervals() -> None:
    assert median_interval([2.0]) == (2.0, 2.0, 2.0)
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        middle, low, high = median_interval(rng.normal(5.0, 1.0, 25).tolist())
        assert low <= middle <= high
        covered += low <= 5.0 <= high
    assert 180 <= covered <= 199


def test_utility_by_windows() -> None:
    """Steps of 2 tokens that take 1 s, beside plain decoding at 0.75 s a token, then at 0.25 s."""
    utility, accepted = windows([(2, 1.0)] * 250, [0.75] * 200 + [0.25] * 300)
    assert utility == pytest.approx([1.5, 0.5]) and accepted == [1.0, 1.0]


def run_of(setting: str, ratio: float | None, **changes: Any) -> Run:
    fields = {field.name: 0 for field in dataclasses.fields(Run)} | {
        "budget": "all", "temperature": 0.0, "category": "chat", "prompt": "p", "setting": setting,
        "tokens": 30, "steps": 10, "seconds": 2.0, "same_text": True, "ratio": ratio, "oracle_known": None,
    }  # fmt: skip
    return Run(**{**fields, **changes})  # type: ignore[arg-type]


def test_rows_by_hand() -> None:
    settings = [Setting("chain:1", "chain", "chain:1"), Setting("chain:2", "chain", "chain:2")]
    findings = Findings()
    findings.runs = [
        run_of("plain", None),
        run_of("chain:1", 1.1, experts=60, hits=40, misses=20, bytes_read=6_000_000, rows=20, accepted=10),
        run_of("chain:1", 1.3, category="code", verify_seconds=1.0, predicted_seconds=0.5, of_predicted=1.0),
        run_of("chain:2", 1.5, same_text=False),
        run_of("chain:2", 0.5, category="code"),
    ]
    rows = rows_of(findings, settings, n_layers=3)
    assert [(r.category, r.setting) for r in rows][:3] == [(None, "plain"), (None, "chain:1"), (None, "chain:2")]
    one, two = rows[1], rows[2]
    assert one.ratio == pytest.approx(1.2) and one.runs == 2 and one.tokens_per_second == 15.0
    assert (one.unique_experts, one.hits, one.misses, one.rows, one.accepted) == (1.0, 2.0, 1.0, 1.0, 0.5)
    assert one.mb_read == pytest.approx(0.1) and one.verify_ms == 50.0 and one.predicted_over_measured == 0.5
    assert one.is_best and not two.is_best and one.same_text and not two.same_text
    by_category = {(r.category, r.setting): r for r in rows}
    assert by_category["chat", "chain:2"].is_best and by_category["code", "chain:1"].is_best
    text = markdown(findings, plan(settings=settings), FACTS, 3)
    assert "**chain:1**" in text and "which is a fault of the engine: chain:2" in text


# Runs.


@pytest.fixture(scope="module")
def findings(loader: Callable[[str], Model]) -> Findings:
    return Runner(plan(long_tokens=120, long_settings=("residency",)), loader).run()


def test_every_setting_runs_at_every_budget(findings: Findings) -> None:
    for budget in ("all", "50%"):
        for prompt in ("chat-01", "code-01"):
            names = [r.setting for r in findings.runs if (r.budget, r.prompt) == (budget, prompt)]
            assert names.count("plain") == 6  # before, after, and between fours
            assert sorted(n for n in names if n != "plain") == sorted(s.name for s in comparison_settings(8, 2))
    assert not findings.interrupted and findings.left_out == []
    assert len(findings.runs) == plan().n_runs


def test_all_lossless_rows_say_what_plain_decoding_says(findings: Findings) -> None:
    lossless = {s.name for s in (PLAIN, *comparison_settings(8, 2)) if s.is_lossless}
    assert all(run.same_text for run in findings.runs if run.setting in lossless)
    assert all(9 <= run.tokens <= 9 + 5 for run in findings.runs)


def test_ratios_are_to_the_plain_runs_around(findings: Findings) -> None:
    runs = findings.runs
    checked = 0
    for i, run in enumerate(runs):
        if run.ratio is None:
            assert run.setting == "plain"
            continue
        before = next(r for r in reversed(runs[:i]) if r.setting == "plain")
        after = next(r for r in runs[i:] if r.setting == "plain")
        mean = statistics.mean((before.tokens_per_second, after.tokens_per_second))
        assert run.ratio == pytest.approx(run.tokens_per_second / mean)
        checked += 1
    assert checked == 4 * len(comparison_settings(8, 2))


def test_counts_of_runs(findings: Findings) -> None:
    for run in findings.runs:
        assert run.hits + run.misses == run.experts > 0
        assert run.draft_seconds + run.select_seconds + run.verify_seconds <= run.seconds * 1.05
        if run.setting == "plain":
            assert run.tokens == run.steps == run.rows and run.drafted == 0
        else:
            assert run.tokens == run.steps + run.accepted
    missed = {b: sum(r.misses for r in findings.runs if r.budget == b) for b in ("all", "50%")}
    assert missed["50%"] > 20 * missed["all"]
    assert findings.resident_share["all"] == 1.0 and 0.4 < findings.resident_share["50%"] <= 0.5


def test_a_model_without_a_tokenizer_is_given_random_tokens(tmp_path: Path) -> None:
    """As the synthetic ones are: each prompt its own, the same every time, and other ones for another prompt."""
    path = TinyModel(arch="qwen3moe", keys={"tokenizer.ggml.model": "no_vocab"}).write(tmp_path / "m.gguf")
    settings = [s for s in comparison_settings(8, 2) if s.name == "chain:2"]

    def texts() -> list[tuple[int, ...]]:
        wanted = plan(settings=settings, budgets=("all",), temperatures=(1.0,))
        return [tuple(s.text) for s in Runner(wanted, lambda _: Model(path, n_ctx=512)).run().traces[1.0].sequences]

    first, second = texts(), texts()
    assert first == second and len(set(first)) == len(first) == len(PROMPTS)


def test_settings_alternate(loader: Callable[[str], Model]) -> None:
    settings = [s for s in comparison_settings(8, 2) if s.family == "chain"]
    found = Runner(plan(settings=settings, budgets=("all",), rounds=2, plain_every=9), loader).run()
    order = [
        [r.setting for r in found.runs if (r.round, r.prompt) == key][1:-1]
        for key in [(0, "chat-01"), (0, "code-01"), (1, "chat-01"), (1, "code-01")]
    ]
    names = [s.name for s in settings]
    assert order == [names, names[::-1], names[::-1], names]


def test_an_oracle_knows_every_tree_of_its_run(findings: Findings, loader: Callable[[str], Model]) -> None:
    known = [run.oracle_known for run in findings.runs if run.setting == "residency (oracle)"]
    assert len(known) == 4 and set(known) <= {1.0, None}  # None: its run rested from drafting
    restless = Setting("oracle", "oracle", "residency:guard=off", is_oracle=True)
    found = Runner(plan(settings=[restless]), loader).run()
    assert [run.oracle_known for run in found.runs if run.setting == "oracle"] == [1.0] * 4
    trace = findings.traces[0.0]
    sequence = trace.sequences[0]
    oracle = RecordedOracle(sequence, 5)
    oracle.observe(np.zeros(5, np.int32), np.zeros((5, 2, 2), np.int32))
    tree = expertree.DraftTree(
        sequence.tokens[: sequence.node_begin[1]], sequence.parents[: sequence.node_begin[1]], *[np.zeros(0)] * 2
    )  # type: ignore[arg-type]
    sets = oracle.predict(int(sequence.text[0]), tree)
    assert sets is not None and (sets == sequence.routed[sequence.tree_rows(0)]).all()
    # A selector may tell its drafter to leave nodes out.
    kept = [v for v in range(len(tree)) if tree.parents[v] < 0 and v % 2]
    part = dataclasses.replace(tree, tokens=tree.tokens[kept], parents=tree.parents[kept])
    sets = oracle.predict(int(sequence.text[0]), part)
    assert sets is not None and (sets == sequence.routed[sequence.tree_rows(0)][[0, *(v + 1 for v in kept)]]).all()
    oracle.observe(np.zeros(1, np.int32), np.zeros((1, 2, 2), np.int32))
    assert oracle.predict(0, dataclasses.replace(tree, tokens=tree.tokens + 1)) is None
    assert (oracle.n_asked, oracle.n_known) == (3, 2)


def test_recall_by_hand(findings: Findings) -> None:
    trace = findings.traces[0.0]
    sequence = trace.sequences[0]
    right = dataclasses.replace(trace, sequences=[dataclasses.replace(sequence, predicted=sequence.routed)])
    assert predictor_recall(right) == [1.0, 1.0]
    half = sequence.routed.copy()
    half[:, 1, 0] = [next(e for e in range(8) if e not in row) for row in sequence.routed[:, 1]]
    assert predictor_recall(
        dataclasses.replace(trace, sequences=[dataclasses.replace(sequence, predicted=half)])
    ) == pytest.approx([1.0, 0.5])
    unknown = dataclasses.replace(sequence, predicted=np.full_like(sequence.routed, -1))
    assert predictor_recall(dataclasses.replace(trace, sequences=[unknown])) is None


def test_curves_and_long_runs(findings: Findings) -> None:
    assert set(findings.curves) == {"all", "50%"}
    for curve in findings.curves.values():
        assert curve.rows[0] == 1 and curve.experts[0] == 2.0 and curve.experts == sorted(curve.experts)
    assert [(r.budget, r.setting) for r in findings.long_runs] == [("all", "residency"), ("50%", "residency")]
    assert all(run.tokens >= 120 for run in findings.long_runs)


class _Stop:
    """Interrupts the n-th call of the progress function."""

    def __init__(self, n: int, error: type[BaseException]) -> None:
        self.n, self.error = n, error

    def __call__(self, doing: str, done: int) -> None:
        if done >= self.n:
            raise self.error


@pytest.mark.parametrize("error", [Cancelled, KeyboardInterrupt])
def test_an_interrupted_comparison_keeps_what_was_measured(
    error: type[BaseException], loader: Callable[[str], Model], tmp_path: Path
) -> None:
    wanted = plan(settings=[Setting("all", "all", "all")])
    found = Runner(wanted, loader, _Stop(5, error)).run()
    assert found.interrupted and 5 <= len(found.runs) < wanted.n_runs
    ReportWriter(tmp_path, wanted, FACTS, 2).write(found)
    assert "Interrupted" in (tmp_path / "report.md").read_text()
    assert json.loads((tmp_path / "results.json").read_text())["interrupted"] is True
    assert SpeculationTrace.load(tmp_path / "trace-t0.npz").sequences[0].id == "chat-01"


def test_a_report_that_cannot_be_written_fails_before_the_measuring(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(expertree.DeviceError, match="cannot be written"):
        ReportWriter(tmp_path / "taken", plan(settings=[Setting("all", "all", "all")]), FACTS, 2)


def test_plans_that_make_no_sense() -> None:
    for change, message in (
        ({"prompts": []}, "without prompts"),
        ({"rounds": 0}, "rounds is 0"),
        ({"n_tokens": 1}, "n_tokens is 1"),
    ):
        with pytest.raises(expertree.InvalidRequestError, match=message):
            plan(**change)


# Reports.

SCHEMA_KEYS = {
    "schema", "model", "threads", "isa", "n_moe_layers", "interrupted", "plan", "left_out", "resident_share", "summary",
    "runs", "curves", "predictor_recall", "replayed", "long_runs", "steps",
}  # fmt: skip


def test_results_have_the_documented_keys(findings: Findings) -> None:
    found = json.loads(json.dumps(results(findings, plan(), FACTS, 2)))
    assert set(found) == SCHEMA_KEYS and found["schema"] == "expertree.speculation_bench/1"
    documented = (Path(__file__).resolve().parents[2] / "docs" / "bench.md").read_text()
    for key in SCHEMA_KEYS | set(found["runs"][0]) | set(found["summary"][0]):
        assert f"`{key}`" in documented, key
    assert len(found["steps"]["values"][0]) == len(found["steps"]["columns"])


def test_the_replay_stands_beside_what_was_measured(findings: Findings) -> None:
    """Counts that do not depend on time are the same: this machine has all experts in memory, or reads ahead."""
    replayed = replay_findings(findings, plan())
    rows = {r.setting: r for r in rows_of(findings, plan().settings, 2) if (r.budget, r.category) == ("all", None)}
    here = {row.setting: row for row in replayed["all", 0.0]}
    assert set(here) == {name for name, row in rows.items() if row.is_lossless}
    for name in ("plain", "all", "chain:2", "threshold:0.5", "ecospec:4"):
        assert here[name].rows == pytest.approx(rows[name].rows) and here[name].accepted == rows[name].accepted
        assert here[name].unique_experts == pytest.approx(rows[name].unique_experts)
    text = markdown(dataclasses.replace(findings, replayed=replayed), plan(), FACTS, 2)
    assert "Replay of this machine beside what was measured" in text
    assert final_trace(findings, 0.0).costs in findings.costs.values()


def test_the_report_marks_what_is_lossy(findings: Findings) -> None:
    text = markdown(findings, plan(), FACTS, 2)
    assert text.count("moespec:4** (LOSSY)") + text.count("moespec:4 (LOSSY)") == 2
    assert "moespec:4: the text is" in text and "residency (oracle): knew" in text
    assert "## Budget all (100% of the experts)" in text and "recall (= precision)" in text


def test_plots(findings: Findings, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib (pip install expertree[plots])")
    found = results(findings, plan(), FACTS, 2)
    found["long_runs"][0]["utility"] = [1.1, 0.9]
    written = plots.write_plots(found, tmp_path)
    assert [path.stem for path in written] == list(plots.NAMES)
    assert all(path.stat().st_size > 5000 for path in written)
    empty = results(Findings(), plan(), FACTS, 2)
    assert plots.write_plots(empty, tmp_path / "none") == []


def test_plots_without_matplotlib(monkeypatch: pytest.MonkeyPatch, chat_path: Path, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(expertree.UnsupportedError, match=r"pip install 'expertree\[plots\]'.*--no-plots"):
        plots.require_matplotlib()
    result = CliRunner().invoke(app, ["bench", str(chat_path), "--speculate", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1 and "matplotlib" in result.stderr
    assert not (tmp_path / "out").exists()


# Commands.


def bench(path: Path, out: Path, *more: str) -> list[str]:
    fixed = ["--speculate", "--category", "chat", "--out", str(out), "--no-plots", "--ctx", "1024", "-n", "6"]
    return ["bench", str(path), *fixed, "--rounds", "1", "--threads", "1", *more]


def test_the_commands(chat_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, bench(chat_path, out, "--ram", "all,50%", "--select", "chain:2", "--json"))
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {(row["budget"], row["setting"]) for row in rows} == {
        (budget, setting) for budget in ("all", "50%") for setting in ("plain", "chain:2")
    }
    assert {row["schema"] for row in rows} == {"expertree.speculation_bench/1"}
    assert (out / "report.md").read_text().startswith("# Ways to choose")
    trace = str(out / "trace-t0.npz")
    result = CliRunner().invoke(app, ["replay", trace, "--machine", "pcie4,budget=50%", "--vram", "1MiB", "--json"])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {row["machine"] for row in rows} == {"pcie4,budget=50%", "1MiB pcie3", "1MiB pcie4", "1MiB pcie5"}
    assert all(row["schema"] == "expertree.replay/1" for row in rows)
    result = CliRunner().invoke(app, ["replay", trace, "--select", "residency"])
    assert result.exit_code == 0 and "75% pcie3" in result.stdout and "here" in result.stdout


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        (["--ram", "all,lots"], 2, "'lots' is no size"),
        (["--ram", "150%"], 2, "'150%' is no share"),
        (["--select", "best"], 1, "no row and no selector"),
        (["--draft", "nobody"], 1, "no drafter 'nobody'"),
        (["--draft", "scripted:x"], 1, "makes no sense"),
        (["--sweep", "huge"], 2, "expected one of small, large"),
        (["--category", "poems"], 1, "no category 'poems'"),
    ],
)
def test_bad_arguments(more: list[str], status: int, message: str, chat_path: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, bench(chat_path, tmp_path / "out", *more))
    assert result.exit_code == status
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_several_budgets_are_for_comparisons(chat_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", str(chat_path), "--ram", "75%,50%"])
    assert result.exit_code == 2 and "is no size" in result.stderr


def test_a_dense_model_and_a_missing_trace(tmp_path: Path) -> None:
    dense = write_chat_model(tmp_path / "dense.gguf")
    result = CliRunner().invoke(app, bench(dense, tmp_path / "out"))
    assert result.exit_code == 1 and "no experts" in result.stderr
    result = CliRunner().invoke(app, ["replay", str(tmp_path / "none.npz")])
    assert result.exit_code == 1 and "no recorded run" in result.stderr


def test_ctrl_c_keeps_what_was_measured(chat_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = bench(chat_path, out, "--rounds", "100000", "--select", "all", "--ram", "all")
    process = subprocess.Popen([sys.executable, "-m", "expertree", *arguments], stdout=subprocess.DEVNULL)
    try:
        wait_until((out / "results.json").exists, 120)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
    found = json.loads((out / "results.json").read_text())
    assert found["interrupted"] is True and len(found["runs"]) >= 3
    assert not list(out.glob("*.part"))
