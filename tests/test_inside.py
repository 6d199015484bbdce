"""Inside: every public name, its refusals, an untrained control, runs that were resumed, and the page."""
import base64
import html.parser
import json
import math
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import save_file

from minibert.show import page
from minibert.config import BertConfig
from minibert.data.corpus import Corpus
from minibert.data.stories import stories
from minibert.core.errors import UserError
from minibert.core.seeds import seeded
from minibert.model import attentions
from minibert.nn.block import BlockConfig, BlockForPreTraining
from minibert.heads import BertForPreTraining
from minibert.measure.heads import HeadScores, name_heads, score_heads
from minibert.inside import (
    KINDS, head_entropy, logit_lens, place_kinds, read_text, rollout)
from minibert.measure.observer import Observer, model_parts, part_curves, plain_batch
from minibert.show.page import for_bertviz, inspect
from minibert.pairs import PairSampler
from minibert.parity import randomise_
from minibert.train.recipe import TrainingConfig
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.trainer import make_sampler, pretrain, resume
from minibert.training import Callback, Run, train_step
from minibert.measure.heads import anisotropy, mean_cosine, neighbours, principal, word_vectors
from minibert.weights import save_pretrained, to_hf

A, B = "anna lost her red ball .", "she found it under the bed ."


@pytest.fixture(scope="module")
def tokenizer(): return WordPieceTokenizer.train(s for story in stories(400) for s in story.sentences)


@pytest.fixture(scope="module")
def config(tokenizer):
    return BertConfig(vocab_size=tokenizer.vocab_size, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37,
                      max_position_embeddings=48)


@pytest.fixture(scope="module")
def model(config): return randomise_(BertForPreTraining(config)).train()


@pytest.fixture(scope="module")
def corpus(tokenizer): return Corpus.build([s.sentences for s in stories(30)], tokenizer)


@pytest.fixture(scope="module")
def plain(corpus, tokenizer): return [plain_batch(PairSampler(corpus, tokenizer, 40), step, 4) for step in range(2)]


def gradients_off(model): return all(p.grad is None for p in model.parameters())


# reading

def test_reading_is_what_the_model_computes(model, tokenizer):
    state = torch.get_rng_state()
    reading = read_text(model, tokenizer, A, B)
    assert model.training and torch.equal(state, torch.get_rng_state()) and gradients_off(model)
    batch = {name: torch.tensor([row]) for name, row in tokenizer.encode(A, B).items()}
    with torch.no_grad(): probs, states = attentions(model.eval().bert, **batch), model.bert(**batch).hidden_states
    model.train()
    assert torch.equal(reading.probs, torch.cat(probs)) and torch.equal(reading.states, torch.cat(states))
    assert reading.tokens == ["[CLS]", *A.split(), "[SEP]", *B.split(), "[SEP]"] and reading.types == batch["token_type_ids"][0].tolist()


def test_letters_of_all_kinds(model, tokenizer):
    reading = read_text(model, tokenizer, "<b> & 日本 \u200b ß é anna")
    assert "anna" in reading.tokens and "[UNK]" in reading.tokens and torch.isfinite(reading.states).all()


def broken(config, part):
    "A model with one NaN among the weights of a part."
    model = BertForPreTraining(config, seeded(1))
    with torch.no_grad(): model.get_submodule(part).weight[3, 2] = float("nan")
    return model


DAMAGED = "not finite numbers.*earlier checkpoint"


def test_a_damaged_encoder_gives_no_figure(config, tokenizer, plain, tmp_path, undrawn):
    model = broken(config, "bert.encoder.layers.0.feed_forward.up")
    save_pretrained(model, tokenizer, tmp_path / "m")
    for figure in (lambda: read_text(model, tokenizer, A), lambda: score_heads(model, tokenizer, plain),
                   lambda: anisotropy(model, tokenizer, plain), lambda: inspect(tmp_path / "m", A, tmp_path / "out")):
        with pytest.raises(FloatingPointError, match=DAMAGED): figure()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_damaged_head_or_table_gives_no_figure(config, tokenizer):
    reading = read_text(broken(config, "mlm_head.dense"), tokenizer, A)
    with pytest.raises(FloatingPointError, match=DAMAGED): logit_lens(broken(config, "mlm_head.dense"), reading.states)


# entropy, rollout, bertviz

def test_entropy_of_known_gazes_and_padding():
    even, one = torch.full((2, 3, 5, 5), 0.2), torch.eye(5).expand(2, 3, 5, 5)
    assert torch.allclose(head_entropy(even), torch.full((3,), math.log(5))) and not head_entropy(one).any()
    real = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    mixed = torch.where(real[:, None, :, None] > 0, one, even)  # what padding looks at does not count
    assert not head_entropy(mixed, real).any() and head_entropy(mixed).all()
    assert head_entropy(even.bfloat16()).dtype == torch.float32


def test_rollout_is_every_path():
    probs = torch.rand(3, 2, 4, 4, generator=seeded(1)).softmax(-1)
    step = [(layer.mean(0) + torch.eye(4)) / 2 for layer in probs]
    paths = sum(step[2][:, [m]] * step[1][[m]][:, [k]] * step[0][[k]] for m in range(4) for k in range(4))
    torch.testing.assert_close(rollout(probs), paths)
    torch.testing.assert_close(rollout(torch.eye(4).expand(5, 2, 4, 4)), torch.eye(4))


def test_bertviz_gets_its_documented_arguments(model, tokenizer):
    """bertviz.head_view(attention, tokens, sentence_b_start): a list of a (1, H, S, S) tensor a layer, S tokens, where B starts."""
    def head_view(attention, tokens=None, sentence_b_start=None):
        for layer in attention:
            if layer.dim() != 4 or layer.shape[0] != 1: raise ValueError("The attention tensor does not have the correct number of dimensions.")
            assert layer.shape[2] == layer.shape[3] == len(tokens) and not layer.requires_grad
        return tokens if sentence_b_start is None else tokens[sentence_b_start:]
    given = for_bertviz(read_text(model, tokenizer, A, B))
    assert isinstance(given["attention"], list) and len(given["attention"]) == 2
    assert head_view(**given) == [*B.split(), "[SEP]"]
    assert for_bertviz(read_text(model, tokenizer, A))["sentence_b_start"] is None


# the observer

def test_parts_hold_every_parameter_once(model):
    parts = model_parts(model)
    assert list(parts) == ["embeddings", "layer_0", "layer_1", "heads"]
    assert sorted(id(p) for part in parts.values() for p in part) == sorted(id(p) for p in model.parameters())


def test_plain_batch_is_the_text_before_masking(corpus, tokenizer):
    sampler = PairSampler(corpus, tokenizer, 40, probability=1.0)
    batch, masked = plain_batch(sampler, 3, 8), sampler.batch(3, 8, positions=True)
    text = masked["positions"] >= 0
    assert tokenizer.mask_id in masked["input_ids"] and set(batch) == {"input_ids", "token_type_ids", "attention_mask"}
    assert batch["input_ids"][text].tolist() == torch.as_tensor(corpus.ids[masked["positions"][text].numpy()].astype("int64")).tolist()


def test_observer_tells_what_gradient_descent_does(config, corpus, tokenizer):
    model, sampler = BertForPreTraining(config, seeded(1)), PairSampler(corpus, tokenizer, 40)
    before = {part: sum(p.detach().double().square().sum() for p in ps) ** 0.5 for part, ps in model_parts(model).items()}
    recipe = TrainingConfig(steps=1, warmup=0.0, batch_size=4, length=40)
    run = Run(model, [torch.optim.SGD(model.parameters(), lr=0.5)], recipe, callbacks=[Observer()])
    run.callbacks[0].after_step(train_step(run, sampler.batch(0, 4)))
    line = run.line | run.figures
    for part, weight in before.items():
        assert math.isclose(line[f"update/{part}"] * weight, 0.5 * line[f"gradient/{part}"], rel_tol=1e-3)
        after = sum(p.detach().double().square().sum() for p in model_parts(model)[part]) ** 0.5
        assert math.isclose(line[f"weight/{part}"], after, rel_tol=1e-4)
    assert math.isclose(math.hypot(*(line[f"gradient/{part}"] for part in before)), min(1, line["grad_norm"]), rel_tol=1e-3)
    assert not any(name.startswith("entropy/") for name in line)


def test_observed_and_resumed_run_is_the_run(config, corpus, tokenizer, tmp_path):
    recipe = TrainingConfig(steps=5, batch_size=4, length=40, log_steps=1, checkpoint_steps=2, optimizer="muon")
    sampler = make_sampler(corpus, tokenizer, recipe)
    look, runs = Observer(plain_batch(sampler, size=2)), {}
    noisy = replace(config, hidden_dropout_prob=0.1)
    for name, callbacks in {"alone": [], "watched": [look]}.items():
        runs[name] = BertForPreTraining(noisy, seeded(1))
        history = pretrain(runs[name], sampler, recipe, callbacks=callbacks, progress=False)

    def stop(run):
        if run.step == 3: raise KeyboardInterrupt
    broken = BertForPreTraining(noisy, seeded(1))
    with pytest.raises(KeyboardInterrupt): pretrain(broken, sampler, recipe, tmp_path, callbacks=[look, Callback(after_step=stop)], progress=False)
    again, lines = resume(tmp_path, sampler, callbacks=[look], progress=False)
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, runs["watched"].state_dict()[name]) and torch.equal(weight, runs["alone"].state_dict()[name])
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf8").splitlines()]
    assert written == lines == history and [line["step"] for line in written] == [1, 2, 3, 4, 5]
    for what, parts in dict(gradient=4, update=4, weight=4, entropy=2).items():
        curves = part_curves(written, what)
        assert len(curves) == parts and all(steps == [1, 2, 3, 4, 5] for steps, _ in curves.values())


def test_curves_of_a_run_that_was_not_watched_throughout():
    lines = [dict(step=1, mlm_loss=2.0), {"step": 2, "weight/layer_0": 3.0}, dict(step=3)]
    assert part_curves(lines, "weight") == {"layer_0": ([2], [3.0])}
    for what, history in (("gradient", lines), ("weight", [])):
        with pytest.raises(ValueError, match="Observer"): part_curves(history, what)


# what heads look at

def test_places_have_the_first_kind_that_fits(plain, tokenizer):
    ids = plain[0]["input_ids"]
    kinds = place_kinds(ids, tokenizer)
    for b in range(len(ids)):
        for i in range(ids.shape[1]):
            for j in range(ids.shape[1]):
                told = dict(zip(KINDS, [ids[b, j] == tokenizer.cls_id, ids[b, j] == tokenizer.sep_id, i == j, j == i - 1, j == i + 1,
                                        bool(ids[b, i] == ids[b, j]), True]))
                assert KINDS[kinds[b, i, j]] == next(kind for kind, fits in told.items() if fits)


def test_scores_are_shares_and_padding_does_not_count(model, tokenizer, plain):
    scores = score_heads(model, tokenizer, plain)
    assert model.training and scores.shares.shape == (2, 4, 7) and scores.breadth.shape == (2, 4)
    torch.testing.assert_close(scores.shares.sum(-1), torch.ones(2, 4).double(), atol=1e-5, rtol=0)
    assert (scores.breadth > 0).all() and (scores.breadth <= 1 + 1e-6).all()
    pad = {"input_ids": tokenizer.pad_id, "token_type_ids": 0, "attention_mask": 0}
    wider = [{name: torch.nn.functional.pad(values, (0, 5), value=pad[name]) for name, values in batch.items()} for batch in plain]
    for left, right in zip(vars(scores).values(), vars(score_heads(model, tokenizer, wider)).values()):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)


def test_untrained_control_has_no_specialist(config, tokenizer, plain):
    scores = score_heads(BertForPreTraining(config, seeded(1)), tokenizer, plain)
    assert name_heads(scores) == [["broad"] * 4] * 2 and scores.excess().abs().max() < 0.01


def test_names_need_a_margin():
    uniform = torch.tensor([0, 0, 0.1, 0.1, 0.1, 0, 0.7])
    shares = torch.stack([uniform, uniform, torch.tensor([0, 0, 0, 0.36, 0, 0, 0.64]), torch.tensor([0, 0, 0, 0.34, 0, 0, 0.66])])
    scores = HeadScores(shares[None], uniform, torch.tensor([[1.0, 0.5, 0.5, 0.5]]))
    assert name_heads(scores) == [["broad", "mixed", "previous", "mixed"]]
    assert name_heads(scores, margin=0.2)[0][3] == "previous" and name_heads(scores, even=0.4)[0][1] == "broad"


# the stream

def test_lens_after_the_last_layer_is_the_model(model, tokenizer):
    reading = read_text(model, tokenizer, A, B)
    batch = {name: torch.tensor([row]) for name, row in tokenizer.encode(A, B).items()}
    with torch.no_grad(): logits = model.eval()(**batch).prediction_logits[0]
    model.train()
    lens = logit_lens(model, reading.states)
    torch.testing.assert_close(lens[-1], logits.softmax(-1))
    torch.testing.assert_close(lens[1, 3], logit_lens(model, reading.states[1, 3]))
    assert not torch.allclose(lens[-2], lens[-1]) and model.training


def test_neighbours_are_the_nearest(config, tokenizer):
    model = BertForPreTraining(replace(config, vocab_size=config.vocab_size + 3), seeded(1))  # rows without a piece
    table = model.word_embeddings.detach()
    table[tokenizer.vocab["ball"]] = 2 * table[tokenizer.vocab["red"]] + 0.001
    table[-1] = table[tokenizer.vocab["red"]]
    found = neighbours(model, tokenizer, "red", k=3)
    cosines = torch.nn.functional.cosine_similarity(table[tokenizer.vocab["red"]][None], table[:tokenizer.vocab_size])
    order = [tokenizer.pieces[i] for i in cosines.argsort(descending=True) if tokenizer.pieces[i] != "red"]
    assert [piece for piece, _ in found] == order[:3] and order[0] == "ball" and found[0][1] > 0.99
    assert len(neighbours(model, tokenizer, "red", k=10**6)) == tokenizer.vocab_size - 1


def test_vectors_of_a_word(model, tokenizer):
    vectors = word_vectors(model, tokenizer, [A, "the ball was red ."], "ball")
    assert vectors.shape == (2, 3, 24) and torch.equal(vectors[0], read_text(model, tokenizer, A).states[:, 5])


def test_principal_components_keep_the_spread():
    vectors = torch.randn(9, 5, generator=seeded(2))
    places, shares = principal(vectors, 5)
    torch.testing.assert_close(torch.cdist(places, places), torch.cdist(vectors, vectors).double(), atol=1e-5, rtol=1e-4)
    assert math.isclose(shares.sum(), 1, rel_tol=1e-9) and (shares.diff() <= 0).all()
    assert (places.gather(0, places.abs().argmax(0, keepdim=True)) > 0).all() and principal(vectors)[0].shape == (9, 2)


def test_cosines_by_brute_force(model, tokenizer, plain):
    vectors = torch.randn(6, 4, generator=seeded(3))
    pairs = [torch.nn.functional.cosine_similarity(vectors[i], vectors[j], 0) for i in range(6) for j in range(6) if i != j]
    assert math.isclose(mean_cosine(vectors), torch.stack(pairs).mean(), abs_tol=1e-6)
    assert math.isclose(mean_cosine(torch.ones(3, 4)), 1, rel_tol=1e-9)
    cones = anisotropy(model, tokenizer, plain)
    states = [[], [], []]
    for batch in plain:
        words = (batch["attention_mask"] > 0) & (batch["input_ids"] != tokenizer.cls_id) & (batch["input_ids"] != tokenizer.sep_id)
        with torch.no_grad(): seen = model.eval().bert(**batch).hidden_states
        for kept, state in zip(states, seen): kept.append(state[words])
    model.train()
    for cosine, kept in zip(cones, states, strict=True):
        unit = torch.nn.functional.normalize(torch.cat(kept).double(), dim=-1)
        n = len(unit)
        assert math.isclose(cosine, ((unit @ unit.T).sum() - n) / (n * n - n), abs_tol=1e-6)
    again = anisotropy(model, tokenizer, plain)
    assert again == cones and model.training


# the page

class Page(html.parser.HTMLParser):
    "What a browser would load, run or show."

    def __init__(self, path):
        super().__init__()
        self.tags, self.links, self.text = [], [], ""
        self.feed(path.read_text(encoding="utf8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action", "data", "srcset")]

    def handle_data(self, data): self.text += data


@pytest.fixture(scope="module")
def tiny(config): return BertForPreTraining(replace(config, num_hidden_layers=1, num_attention_heads=2), seeded(1))


@pytest.fixture(scope="module")
def run(tiny, tokenizer, tmp_path_factory):
    "A run of 3 watched steps, as `minibert pretrain` leaves one."
    folder, recipe = tmp_path_factory.mktemp("runs") / "<i>run", TrainingConfig(steps=3, batch_size=4, length=40, log_steps=1)
    folder.mkdir()
    documents = [s.sentences for s in stories(12)]
    sampler = make_sampler(Corpus.build(documents, tokenizer, folder / "corpus"), tokenizer, recipe)
    pretrain(tiny, sampler, recipe, folder, callbacks=[Observer(plain_batch(sampler, size=2))], progress=False)
    save_pretrained(tiny, tokenizer, folder)
    Corpus.build(documents, tokenizer, folder / "val")
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    "Figures are made, and not drawn: that is what takes the time."
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, file, **options: file.write(b"PNG"))


def test_page_of_a_run(run, tmp_path):
    path = inspect(run, "<b>anna</b> lost her [MASK] ball & 日本 .", tmp_path / "deep" / "out", pair=B)
    page, names = Page(path), {file.stem for file in path.parent.glob("*.png")}
    assert path == tmp_path / "deep" / "out" / "index.html" and [p.name for p in path.parent.parent.iterdir()] == ["out"]
    assert names == {"heads", "entropy", "rollout", "layer-0", "lens-11", "specialties", "anisotropy", "training-gradient", "training-update",
                     "training-weight", "training-entropy"}
    pictures = [base64.b64decode(link.split(",")[1]) for link in page.links if link.startswith("data:image/png;base64,")]
    assert sorted(pictures) == sorted(file.read_bytes() for file in path.parent.glob("*.png"))
    assert len(page.links) == len(pictures) and not {"script", "link", "iframe", "i"} & set(page.tags)
    assert "Inside <i>run" in page.text and "[CLS] [UNK] b [UNK] anna" in page.text and "日" not in page.text
    assert "http" not in path.read_text(encoding="utf8").replace("http-equiv", "")


def test_page_shows_marks_as_text(tiny, tokenizer, tmp_path, undrawn):
    marks = WordPieceTokenizer([*tokenizer.pieces[:-4], "<", ">", "&", "é"], lowercase=False)  # ids as many as the model's
    save_pretrained(tiny, marks, tmp_path / "m")
    page = Page(inspect(tmp_path / "m", "anna < é > & $x$ ball", tmp_path / "out"))
    assert "[CLS] anna < é > & " in page.text and page.tags.count("b") == 1
    assert {"lens"} <= {file.stem for file in (tmp_path / "out").glob("*.png")}


@pytest.mark.parametrize("kind", ["bert", "roformer"])
def test_page_of_a_bare_checkpoint(tiny, tokenizer, tmp_path, undrawn, kind):
    sizes = asdict(tiny.config) | dict(model_type=kind)
    bare = BlockForPreTraining(BlockConfig(**sizes), seeded(2)) if kind == "roformer" else BertForPreTraining(BertConfig(**sizes), seeded(2))
    save_pretrained(bare, tokenizer, tmp_path / "m")
    path = inspect(tmp_path / "m", A, tmp_path / "out")
    assert {file.stem for file in path.parent.glob("*.png")} == {"heads", "entropy", "rollout", "layer-0", "lens"}


def test_page_of_an_encoder_without_heads(tiny, tokenizer, tmp_path, undrawn):
    larger = BertForPreTraining(replace(tiny.config, vocab_size=tokenizer.vocab_size + 5), seeded(2))
    save_pretrained(larger, tokenizer, tmp_path / "m")
    encoder = {name.removeprefix("bert."): tensor.contiguous() for name, tensor in to_hf(larger).items() if name.startswith("bert.")}
    save_file(encoder, tmp_path / "m" / "model.safetensors")  # as transformers saves its BertModel
    path = inspect(tmp_path / "m", "anna [MASK] .", tmp_path / "out")
    assert {file.stem for file in path.parent.glob("*.png")} == {"heads", "entropy", "rollout", "layer-0"}
    assert "no MLM head" in Page(path).text


def test_damaged_corpus_is_named_on_the_page(tiny, tokenizer, tmp_path, undrawn):
    save_pretrained(tiny, tokenizer, tmp_path / "m")
    (tmp_path / "m" / "corpus").mkdir()
    (tmp_path / "m" / "metrics.jsonl").write_text('{"step": 1, "mlm_loss": 2.0}\n{"step": 2, "mlm')
    path = inspect(tmp_path / "m", A, tmp_path / "out")
    assert "could not be used" in Page(path).text and not list(path.parent.glob("training-*")) + list(path.parent.glob("spec*"))


def test_nothing_half_written(run, tmp_path, monkeypatch, undrawn):
    def fail(*args, **options): raise RuntimeError("the disk is full")
    monkeypatch.setattr(page, "neighbours", fail)
    with pytest.raises(RuntimeError, match="disk"): inspect(run, A, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text, out, error, match", [
    (A, ".", UserError, "exists"), ("anna " * 60, "out", UserError, "48")])
def test_refusals_come_before_writing(run, tmp_path, text, out, error, match):
    with pytest.raises(error, match=match): inspect(run, text, tmp_path / out)
    assert not list(tmp_path.iterdir())


def test_what_is_no_checkpoint_is_refused(run, tmp_path):
    for where in (tmp_path / "nowhere", run / "corpus"):
        with pytest.raises(FileNotFoundError): inspect(where, A, tmp_path / "out")


def test_pictures_name_so_many_pieces(tiny, tokenizer, tmp_path):
    long = BertForPreTraining(replace(tiny.config, max_position_embeddings=128), seeded(1))
    save_pretrained(long, tokenizer, tmp_path / "m")
    with pytest.raises(ValueError, match="sentence by sentence"): inspect(tmp_path / "m", "anna " * 63, tmp_path / "out")
