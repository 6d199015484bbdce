"""A GPT and a T5's encoder under the commands that BERT has: fine-tuned, asked, drawn, probed; and a table of one's own words."""
import csv
import json
import shutil

import pytest
import torch
import transformers as hf
from command import FILMS, as_json, bits_of, call, quick, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.core.seeds import seeded
from minibert.measure.probe_runs import read_word_table
from minibert.measure.probes import deal_words
from minibert.nn.kinds import CLASSIFIERS, GPTClassifier, T5Classifier, load_reading, reading_tokenizer
from minibert.parity import assert_same, randomise_
from minibert.weights import from_hf, load_pretrained, to_hf


def batch_of(seed, V=101, B=4, S=9):
    "Ids with padding behind them."
    real = torch.randint(1, S + 1, (B, 1), generator=seeded(seed, 7))
    mask = (torch.arange(S) < real).long()
    return dict(input_ids=torch.randint(5, V, (B, S), generator=seeded(seed, 8)) * mask, attention_mask=mask)


@settings(max_examples=8)
@given(layers=st.integers(1, 3), heads=st.sampled_from([2, 3, 6]), labels=st.integers(2, 5), seed=st.integers(0, 99))
def test_logits_loss_and_every_gradient_of_a_gpt_are_theirs(layers, heads, labels, seed):
    sizes = hf.GPT2Config(vocab_size=101, n_positions=16, n_embd=24, n_layer=layers, n_head=heads, n_inner=37, num_labels=labels, pad_token_id=0,
                          bos_token_id=None, eos_token_id=None, attn_implementation="eager", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    theirs = randomise_(hf.GPT2ForSequenceClassification(sizes), seed=seed).double().eval()
    ours, batch, wanted = from_hf(theirs).eval(), batch_of(seed), torch.randint(labels, (4,), generator=seeded(seed, 9))
    a, b = ours(**batch, labels=wanted), theirs(**batch, labels=wanted)
    assert_same([a.logits, a.loss], [b.logits, b.loss], tol=1e-9)
    assert len(ours.names) == labels and ours.counts(batch | dict(labels=wanted)) == dict(label=4)
    a.loss.backward(), b.loss.backward()
    with torch.no_grad():
        for p in ours.parameters(): p.copy_(p.grad)
    grads = {name: p.grad for name, p in theirs.named_parameters()}
    assert to_hf(ours).keys() == grads.keys() and max(grad.abs().max() for grad in grads.values()) > 1e-3
    for name, grad in to_hf(ours).items(): assert_same(grad, grads[name], tol=1e-9, name=name)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5") / "t5"
    call("pretrain", "--model", "t5", *quick(), "--out", folder)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory, gpt, t5):
    "Labels, and a classifier of a GPT and of a T5."
    home = tmp_path_factory.mktemp("kinds")
    (home / "films.csv").write_text(FILMS)
    for name, run in dict(gpt=gpt, t5=t5).items():
        call("finetune", run, "--dataset", "films.csv", "--epochs", 12, "--batch-size", 8, "--measures", 2, "--length", 16, "--learning-rate", 3e-3, "--out", name, cwd=home)
    return home


@pytest.mark.parametrize("name, kind", [("gpt", GPTClassifier), ("t5", T5Classifier)])
def test_a_classifier_of_each_kind_answers(home, name, kind, tmp_path):
    assert type(load_pretrained(home / name)) is kind
    figures = json.loads((home / name / "figures.json").read_text())
    assert figures["labels"] == ["bad", "good"] and figures["bert"]["accuracy"] == 1
    assert as_json("classify", home / name, "a good film")["labels"]["good"] > 0.5
    out, _ = call("predict", home / name, home / "films.csv", "--batch-size", 7)
    assert [row["label"] for row in csv.DictReader(out.splitlines())] == [row["label"] for row in csv.DictReader(FILMS.splitlines())]
    page = as_json("inspect", home / name, "a good film", "--out", tmp_path / "page")["page"]
    assert "Its labels: good" in open(page, encoding="utf8").read()
    assert listed(home)[name]["model"] == "classify"


def listed(folder): return {run["run"].split("/")[-1]: run for run in as_json("runs", folder)["runs"]}


def test_a_text_is_read_alone_as_in_a_batch_and_by_transformers_as_here(home):
    texts = ["a good film", "a bad and a very very long film that was good", "film"]
    model, tokenizer = load_pretrained(home / "gpt"), reading_tokenizer(home / "gpt")
    batch = tokenizer.encode_batch(texts, return_tensors="pt")
    theirs = hf.GPT2ForSequenceClassification.from_pretrained(home / "gpt").eval()
    their_tokenizer = hf.AutoTokenizer.from_pretrained(home / "gpt")
    told = their_tokenizer(texts, return_tensors="pt", padding=True)
    assert torch.equal(told["input_ids"], batch["input_ids"]) and (batch["input_ids"][:, 0] == tokenizer.sep_id).all()
    with torch.no_grad():
        logits = model(**batch).logits
        assert_same(theirs(told["input_ids"], attention_mask=told["attention_mask"]).logits, logits, tol=1e-5)
        for text, row in zip(texts, logits): assert_same(model(**tokenizer.encode_batch([text], return_tensors="pt")).logits[0], row, tol=1e-5)
    assert {0: "bad", 1: "good"} == theirs.config.id2label


@pytest.mark.parametrize("name", ["gpt", "t5"])
def test_a_stopped_classifier_goes_on_bit_for_bit(home, name, tmp_path):
    begun = shutil.copytree(home / name, tmp_path / "begun")
    for path in (begun / "model.safetensors", begun / "figures.json", sorted((begun / "checkpoints").iterdir())[-1]):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    call("finetune", "--resume", begun, cwd=home)
    a, b = bits_of(home / name, begun)
    assert a == b


def test_the_seed_decides_the_head_and_dropout_is_theirs(gpt, t5):
    for run in gpt, t5:
        bert, make = load_reading(run), CLASSIFIERS[type(load_reading(run))]
        a, b, c = (make(bert, ("x", "y"), generator=seeded(seed)).classifier.weight for seed in (1, 1, 2))
        assert torch.equal(a, b) and not torch.equal(a, c)


@pytest.mark.parametrize("words, said", [
    (("--frozen",), "leave out --pooling and --frozen"), (("--pooling", "cls"), "leave out --pooling and --frozen"),
    (("--task", "regress", "--label-column", "n"), "give a BERT"), (("--text-pair-column", "label2"), "one text at a time")])
def test_what_a_gpt_has_not_is_refused(gpt, tmp_path, words, said):
    (tmp_path / "films.csv").write_text("text,label,label2,n\n" + "".join(f"film {k},{'ab'[k % 2]},x,{k}\n" for k in range(60)))
    assert said in refused("finetune", gpt, "--dataset", "films.csv", "--out", "x", *words, cwd=tmp_path)
    assert not (tmp_path / "x").exists() or not any((tmp_path / "x").glob("*.json"))


NAMES = ["anna", "lily", "mia", "tom", "ben", "sam"]


def table(path, rows=4):
    lines = [(f"one morning {name} lost the ball .", name, "girl" if k < 3 else "boy") for k, name in enumerate(NAMES) for _ in range(rows)]
    with open(path, "w", newline="") as file: csv.writer(file).writerows([("sentence", "word", "label"), *lines])
    return path


@pytest.mark.parametrize("kind", ["bert", "gpt", "t5"])
def test_probe_takes_a_table_and_never_asks_a_word_that_it_has_met(kind, first_run, gpt, t5, tmp_path):
    run = dict(bert=first_run, gpt=gpt, t5=t5)[kind]
    found = as_json("probe", run, "--dataset", table(tmp_path / "names.csv"), "--seeds", 2, "--out", tmp_path / "out")
    assert found["words"] == [6, 24] and found["majority"] == 0.5 and len(found["trained"]) == len(found["untrained"]) == 4
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["confusion.png", "layers.png", "probe.json"]
    assert sum(map(sum, found["confusion"])) == 2 * 24 and {row["words"] for row in found["by_tag"].values()} == {12}
    told, _ = call("probe", run, "--dataset", tmp_path / "names.csv", "--seeds", 1, "--limit", 20, "--last-piece")
    assert "5 words in 20 rows" in told


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["Anna", "anna", "tom", "Tom", "mia", "ben", "lily", "sam", "max"]), min_size=2, max_size=30),
       st.integers(2, 5), st.integers(0, 9))
def test_no_word_in_two_folds_and_labels_dealt_evenly(words, folds, seed):
    labels = ["girl" if word.lower() in ("anna", "mia", "lily") else "boy" for word in words]
    fold = deal_words(words, labels, folds, seed)
    seen = {}
    for word, k in zip(words, fold): assert seen.setdefault(word.lower(), k) == k
    for label in {*labels}:
        sizes = [sum(k == f for w, k in seen.items() if (w in ("anna", "mia", "lily")) == (label == "girl")) for f in range(folds)]
        assert max(sizes) - min(sizes) <= 1


def test_a_whole_sentence_is_asked_at_the_end_of_a_gpts(gpt, tmp_path):
    (tmp_path / "s.csv").write_text("sentence,word,label\na red ball,,x\na red ball,ball,y\n")
    tokenizer = reading_tokenizer(gpt)
    (whole, word), *_ = read_word_table(tmp_path / "s.csv", tokenizer, both=True)
    assert whole.places == [len(whole.ids) - 1] * 2 and whole.ids[-1] == whole.ids[0] == tokenizer.sep_id
    assert word.ids[word.places[0]:word.places[1] + 1] == tokenizer.ids("ball")


@pytest.mark.parametrize("lines, said", [("a ball,ball,x\na cat,cat,x\n", "1 labels"), ("a ball,ball,x\na ball,ball,x\na cat,cat,y\n", "1 word of")])
def test_a_table_without_two_words_a_label_is_refused(first_run, tmp_path, lines, said):
    (tmp_path / "t.csv").write_text("sentence,word,label\n" + lines)
    assert said in refused("probe", first_run, "--dataset", tmp_path / "t.csv")


def test_few_sentences_are_few(first_run):
    few, more = (as_json("evaluate", first_run, *words) for words in (("--limit", 60), ()))
    assert few["nsp_pairs"] < more["nsp_pairs"] and few["mlm_tokens"] < more["mlm_tokens"]
    found = as_json("probe", first_run, "--limit", 30, "--seeds", 1)
    assert found["words"][0] < 400 and "roles" not in found


@pytest.mark.slow
def test_all_of_a_run_in_one_report(first_run, tmp_path):
    run = shutil.copytree(first_run, tmp_path / "1")
    before = (run / "README.md").read_text()
    found = as_json("evaluate", run, "--all", "--quick")
    assert {"Held-out text", "Health", "Heads", "Probe", "Fine-tuning", "quick", "page", "card"} == found.keys()
    card = (run / "README.md").read_text()
    assert card.replace(card[card.index("### Health"):card.index("## How to use it")], "") == before
    assert (run / "report/index.html").read_text().count("<img") == 3
    assert sum(map(len, found["Heads"].values())) == 4  # every head has a name


@pytest.mark.parametrize("words, said", [(("--quick",), "is for --all"), (("--all", "--limit", "5"), "leave out --dataset"),
                                         (("--all", "--dataset", "stories"), "leave out --dataset")])
def test_words_of_evaluate_that_do_not_fit(first_run, words, said):
    assert said in refused("evaluate", first_run, *words)
