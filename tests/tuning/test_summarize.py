"""Fine-tuning a T5 on texts and summaries: what is learned, what is measured, and that Hugging Face's generate writes the same."""
import csv
import json
import warnings
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import torch.nn.functional as F
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from command import call, refused
from minibert.core.errors import UserError
from minibert.core.seeds import seeded
from minibert.data.spans import SENTINELS
from minibert.data.stories import stories
from minibert.parity import randomise_
from minibert.runs.overview import describe
from minibert.runs.plan import FinetuneConfig
from minibert.t5 import T5Config, T5ForConditionalGeneration
from minibert.text.foreign import open_tokenizer
from minibert.tokenizer import WordPieceTokenizer
from minibert.tuning.finetune import read_parts, resume_finetuning, run_finetuning
from minibert.tuning.predict import predict, predict_file
from minibert.tuning.summarize import TASK, Summaries, SummarySampler, rouge_l, unread_share
from minibert.tuning.tasks import load_tuned
from minibert.weights import load_pretrained, save_pretrained

TOLD = stories(60)
ROWS = [(" ".join(story.sentences[:2]), f"This is a {story.plot} story.") for story in TOLD]
SIZES = dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0)


def unigram(folder):
    "A T5's own tokenizer, small: pad, end, unknown, and a hundred gaps behind."
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(vocab_size=200, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False)
    made.train_from_iterator([text for row in ROWS for text in row], trainer)
    made.add_special_tokens([f"<extra_id_{k}>" for k in range(100)])
    made.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    hf.T5TokenizerFast(tokenizer_object=made, extra_ids=100).save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    "A folder with two T5s, a run's and Hugging Face's, and a table."
    home = tmp_path_factory.mktemp("home")
    tokenizer = WordPieceTokenizer.train([story.text for story in TOLD], vocab_size=300)
    config = T5Config(tokenizer.vocab_size + SENTINELS, feed_forward_proj="gated-gelu", tie_word_embeddings=False, pad_token_id=tokenizer.pad_id,
                      decoder_start_token_id=tokenizer.pad_id, eos_token_id=tokenizer.sep_id, **SIZES)
    save_pretrained(T5ForConditionalGeneration(config, seeded(1)), tokenizer, home / "ours")
    torch.manual_seed(0)
    theirs = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=328, decoder_start_token_id=0, **SIZES))
    theirs.save_pretrained(home / "theirs")
    unigram(home / "theirs")
    with open(home / "rows.csv", "w", newline="", encoding="utf8") as file: csv.writer(file).writerows([("text", "summary"), *ROWS])
    return home


def options(home, **more):
    values = dict(run=home / "ours", dataset=home / "rows.csv", out=home / f"run-{len(list(home.iterdir()))}", label_column="summary", batch_size=16,
                  epochs=1, learning_rate=1e-2, dropout=0.0) | more
    return FinetuneConfig(task="summarize", **{name: str(v) if name in ("run", "dataset", "out") else v for name, v in values.items()})


@pytest.fixture(scope="module")
def tuned(home):
    "A run of each T5: its folder, its options and its figures."
    made = {}
    for kind in ("ours", "theirs"):
        own = options(home, run=home / kind, epochs=10)
        made[kind] = own.out, own, run_finetuning(own, progress=False)
    return made


# --- ROUGE-L ---


@settings(max_examples=60, deadline=None)
@given(*2 * [st.lists(st.sampled_from("anna has the red ball".split()), max_size=7)])
def test_rouge_l_is_the_longest_common_subsequence(a, b):
    subsequences = [{s for n in range(len(x) + 1) for s in combinations(x, n)} for x in (a, b)]
    longest = max(map(len, subsequences[0] & subsequences[1]))
    assert rouge_l(" ".join(a), " ".join(b)) == pytest.approx(2 * longest / (len(a) + len(b)) if longest else 0.0)


def test_rouge_l_of_hard_cases_is_as_rouge_score_says():
    for said, wanted, score in (("Anna, has: the BALL!", "anna has the ball .", 1.0), (" . ! ", "anna", 0.0), ("", "", 0.0), ("Über uns", "ber uns", 1.0),
                                ("naïve café", "naive cafe", 0.0), ("東京", "東京", 0.0), ("it's foo_bar 3.14", "it s foo bar 3 14", 1.0),
                                ("running", "runs", 0.0), ("a\nb c", "c a b", 0.6666666666666666), ("b a n", "a b n n n", 0.5),
                                ("the cat the cat sat", "the cat sat on a mat", 0.5454545454545454), ("İ K", "i k", 1.0), ("a", "a c c c c", 0.33333333333333337),
                                ("a b", "a c c c c", 0.28571428571428575)):
        assert rouge_l(said, wanted) == score, (said, wanted)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(*2 * [st.one_of(st.lists(st.sampled_from(["anna", "Tom", "has", "it's", "3", "foo_bar", ".", "über"]), max_size=40).map(" ".join), st.text())])
def test_rouge_l_equals_the_package_rouge_score_to_the_last_digit(said, wanted):
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"], use_stemmer=False)
    assert scorer.score(wanted, said)["rougeL"].fmeasure == rouge_l(said, wanted)


def test_letters_that_rouge_does_not_know_are_counted(home):
    assert unread_share(["über 3", "a ."]) == pytest.approx(1 / 6) and unread_share([" . "]) == 0
    test = Summaries(("a", "b"), np.array(["Она дома", "Дом"], object), ("summary",))
    with pytest.warns(UserWarning, match="100% of the letters"): assert TASK.details(test.labels, test) == dict(unread=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TASK.details(None, Summaries(("a",), np.array(["she is at home"], object), ("summary",))) == dict(unread=0.0)


# --- batches and the loss ---


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_batches_hold_texts_and_summaries_with_their_ends(home, kind):
    tokenizer = open_tokenizer(home / kind)
    reader = hf.AutoTokenizer.from_pretrained(home / kind)
    texts, summaries = map(list, zip(*ROWS[:8]))
    sampler = SummarySampler(Summaries(tuple(texts), np.array(summaries, object), ("summary",)), tokenizer, 64)
    batch, theirs = sampler.gather(range(8)), reader(texts, padding=True, return_tensors="pt")
    assert torch.equal(batch["input_ids"], theirs["input_ids"]) and torch.equal(batch["attention_mask"], theirs["attention_mask"])
    for row, text in zip(batch["labels"].tolist(), summaries):
        ids = [*tokenizer.ids(text), tokenizer.sep_id]
        assert row == ids + [-100] * (len(row) - len(ids))
    assert sampler.cut == 0 and sampler.batch(3, 4).keys() == batch.keys()
    short = SummarySampler(sampler.examples, tokenizer, 6)
    ids = short.gather(range(8))["input_ids"]
    assert ids.shape == (8, 6) and (ids[:, -1] == tokenizer.sep_id).all() and torch.equal(ids[:, :5], batch["input_ids"][:, :5])
    assert short.cut == 8 + sum(len(tokenizer.ids(text)) > 5 for text in summaries)
    assert SummarySampler(sampler.examples, tokenizer, max(map(len, (row["input_ids"] for row in sampler.rows)))).cut == 0


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_the_loss_is_theirs_however_it_is_padded(home, kind):
    "The mean over all tokens of all summaries, each text asked for alone."
    model, tokenizer = load_pretrained(home / kind), open_tokenizer(home / kind)
    theirs, total, count = hf.AutoModelForSeq2SeqLM.from_pretrained(home / kind).eval(), 0.0, 0
    sampler = SummarySampler(Summaries(*map(np.array, zip(*ROWS, *ROWS[:9])), ("summary",)), tokenizer, 64)  # two batches
    for row in sampler.rows:
        labels = torch.tensor([row["labels"]])
        with torch.no_grad(): logits = theirs(input_ids=torch.tensor([row["input_ids"]]), labels=labels).logits
        total, count = total + F.cross_entropy(logits[0].double(), labels[0], reduction="sum").item(), count + labels.numel()
    assert sampler.measure(model) == dict(val_loss=pytest.approx(total / count, abs=2e-5))
    batch = sampler.gather(range(5))
    assert model.eval()(**batch).loss.item() == pytest.approx(theirs(**batch).loss.item(), abs=2e-5)


# --- a run, and what comes of it ---


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_their_generate_writes_the_same_summaries(home, tuned, kind):
    "Of the tuned model, and of one with random weights, which ends nowhere; in a batch with padding, and one by one."
    texts = [text for text, _ in ROWS[:9]] + [" ".join(TOLD[0].sentences), "anna"]
    randomise_(model := load_pretrained(home / kind), 5)
    save_pretrained(model, open_tokenizer(home / kind), home / f"random-{kind}")
    for folder, most in ((tuned[kind][0], 24), (home / f"random-{kind}", 9)):
        theirs, reader = (auto.from_pretrained(folder) for auto in (hf.AutoModelForSeq2SeqLM, hf.AutoTokenizer))
        tokenizer = open_tokenizer(folder)
        tokenizer.max_length = most
        model = load_pretrained(folder)
        ours = [row["summary"] for row in predict(model, texts, tokenizer, batch_size=4)]
        assert ours == [row["summary"] for row in predict(model, texts, tokenizer, batch_size=1)]
        for text, said in zip(texts, ours):
            ids = reader(text, return_tensors="pt", truncation=True, max_length=most)["input_ids"]
            row, = theirs.generate(input_ids=ids, max_new_tokens=most, do_sample=False).tolist()
            assert said == tokenizer.decode([k for k in row if k < tokenizer.vocab_size])
    assert len({*ours}) > 1


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_figures_are_those_of_what_it_writes(tuned, kind):
    folder, own, figures = tuned[kind]
    train, val, test = read_parts(TASK, own)
    said = [row["summary"] for row in predict(folder, test.texts)]
    scores = [rouge_l(a, b) for a, b in zip(said, test.labels)]
    assert figures["t5"]["rouge_l"] == pytest.approx(np.mean(scores)) and figures["examples"] == [len(train), len(val), len(test)]
    assert figures["t5"]["exact"] == np.mean([a.lower() == b.lower() for a, b in zip(said, test.labels)])
    lead = [rouge_l(text.split(". ")[0], b) for text, b in zip(test.texts, test.labels)]
    assert figures["lead_sentence"]["rouge_l"] == pytest.approx(np.mean(lead)) and figures["baseline"] == "lead_sentence"
    assert figures["difference"]["difference"] == pytest.approx(np.mean(scores) - np.mean(lead))
    commonest = max(train.labels, key=[*train.labels].count)
    assert figures["commonest_summary"]["rouge_l"] == pytest.approx(np.mean([rouge_l(commonest, b) for b in test.labels]))
    low, high = figures["t5"]["interval"]
    assert 0 <= low <= figures["t5"]["rouge_l"] <= high <= 1 and json.loads(open(f"{folder}/figures.json").read()) == figures
    assert [row[0] for row in TASK.rows(figures)[1:]] == ["this model", "lead sentence", "commonest summary"]


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_it_learns(tuned, kind):
    "From a guess over the whole vocabulary to less than the commonest summary, on rows not learned from, too."
    folder, own, figures = tuned[kind]
    lines = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]
    losses = [line["val_loss"] for line in lines if "val_loss" in line]
    assert lines[0]["span_loss"] > 4 and min(losses) < 1.5 and figures["t5"]["rouge_l"] > 0.5
    assert json.loads(open(f"{folder}/config.json").read())["dropout_rate"] == 0.0


def test_a_stopped_run_goes_on_bit_for_bit(home, monkeypatch):
    import minibert.train.checkpoints as checkpoints
    straight = options(home, out=home / "straight", epochs=2, measures=4, dropout=0.1)
    figures, kept, plain = run_finetuning(straight, progress=False), [], checkpoints.save_checkpoint
    def cut(*args, **more):
        kept.append(plain(*args, **more))
        if len(kept) == 2: raise RuntimeError("power cut")
    monkeypatch.setattr(checkpoints, "save_checkpoint", cut)
    with pytest.raises(RuntimeError): run_finetuning(options(home, out=home / "cut", epochs=2, measures=4, dropout=0.1), progress=False)
    monkeypatch.setattr(checkpoints, "save_checkpoint", plain)
    assert resume_finetuning(home / "cut", progress=False) == figures
    assert (home / "cut/model.safetensors").read_bytes() == (home / "straight/model.safetensors").read_bytes()
    assert json.loads((home / "cut/config.json").read_text())["dropout_rate"] == 0.1


# --- files and the door ---


def test_rows_come_from_every_kind_of_file(home):
    import pyarrow
    import pyarrow.parquet
    (home / "rows.jsonl").write_text("".join(json.dumps(dict(text=a, summary=b)) + "\n" for a, b in ROWS))
    pyarrow.parquet.write_table(pyarrow.table(dict(zip(("text", "summary"), map(list, zip(*ROWS))))), home / "rows.parquet")
    for kind in ("csv", "jsonl", "parquet"):
        found = TASK.read(options(home, dataset=home / f"rows.{kind}"), "train")
        assert [*zip(found.texts, found.labels)] == ROWS
    (home / "bad.csv").write_text("text,summary\na,b\nc, \n")
    with pytest.raises(UserError, match="Row 2 of .*no summary in the column 'summary'"): TASK.read(options(home, dataset=home / "bad.csv"), "train")


def test_predictions_are_in_the_order_of_the_file(home, tuned, tmp_path):
    "Rows of unlike lengths, one of them bad."
    texts = [" ".join(story.sentences[:1 + k % 4]) for k, story in enumerate(TOLD[:10])]
    (tmp_path / "in.csv").write_text("text\n" + "\n".join(f'"{text}"' for text in [*texts[:5], " ", *texts[5:]]) + "\n")
    assert predict_file(tuned["ours"][0], str(tmp_path / "in.csv"), str(tmp_path / "out.csv")) == 1
    with open(tmp_path / "out.csv", encoding="utf8") as file: rows = list(csv.DictReader(file))
    said = [row["summary"] for row in predict(tuned["ours"][0], texts)]
    assert [row["summary"] for row in rows] == [*said[:5], "", *said[5:]] and [row["row"] for row in rows] == [*map(str, range(1, 12))]


def test_the_command_writes_a_summary_for_each_line(home, tuned, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text, _ in ROWS[:3]))
    out, _ = call("predict", tuned["theirs"][0], tmp_path / "in.txt", "--json")
    assert [json.loads(line)["summary"] for line in out.splitlines()] == [row["summary"] for row in predict(tuned["theirs"][0], [text for text, _ in ROWS[:3]])]
    found = describe(Path(tuned["ours"][0]))
    assert found["model"] == "summarize" and found["figure"] == "rouge_l" and found["value"] == tuned["ours"][2]["t5"]["rouge_l"]
    assert "is a summarizer, which gives no labels" in refused("classify", tuned["ours"][0], "anna")


def test_other_models_and_options_are_refused(home):
    with pytest.raises(UserError, match="--task summarize has no --frozen"): run_finetuning(options(home, frozen=True), progress=False)
    config = hf.BertConfig(vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    hf.BertForPreTraining(config).save_pretrained(home / "bert")
    open_tokenizer(home / "ours").save_pretrained(home / "bert")
    (home / "numbers.csv").write_text("text,n\n" + "".join(f"anna,{n}\n" for n in range(20)))
    with pytest.raises(UserError, match="writes no summaries: give a T5"): run_finetuning(options(home, run=home / "bert"), progress=False)
    with pytest.raises(UserError, match="no head of this task stands on"): run_finetuning(
        FinetuneConfig(str(home / "ours"), str(home / "numbers.csv"), str(home / "no"), task="regress", label_column="n"), progress=False)
    assert load_tuned(home / "ours")[0] is TASK and not (home / "no").exists()
    save_pretrained(load_pretrained(home / "ours"), open_tokenizer(home / "ours"), home / "run")
    (home / "run/run.yaml").write_text("model: t5\n")  # it fills gaps
    with pytest.raises(UserError, match="T5ForConditionalGeneration that has learned no task"): load_tuned(home / "run")
