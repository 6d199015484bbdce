"""RoBERTa, ALBERT, DistilBERT and ELECTRA equal Hugging Face's over drawn configurations, and their objectives the formulas."""
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from hypothesis import strategies as st

from lockstep import few_and_many, on_drawn, one_thread  # noqa: F401
from minibert.config import BertConfig
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.stories import stories
from minibert.descendants import (
    DistilBertStudent, ElectraForJointTraining, distillation_losses, draw_tokens, full_sentences, student_of, swap_order)
from minibert.heads import BertForPreTraining
from minibert.hub.compare import compare_with_hf
from minibert.hub.families import FAMILIES, family_of, resolve
from minibert.data.pairs import Pairs
from minibert.data.rows import FullSentences, OrderedPairs, Replaced, Taught
from minibert.hub.sizes import AlbertConfig, DistilBertConfig, ElectraConfig, RobertaConfig
from minibert.model import attentions
from minibert.nn.classifier_parts import make_encoder
from minibert.parity import assert_same, randomise_, reference_batch
from minibert.runs.course import open_course
from minibert.train.gradients import Gradients
from minibert.weights import from_hf, load_encoder, load_pretrained, name_table, save_pretrained, to_hf

SIZES = dict(vocab_size=101, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37, max_position_embeddings=20)
CONFIGS = {  # architecture: its config
    "RobertaForMaskedLM": RobertaConfig(**SIZES),
    "AlbertForPreTraining": AlbertConfig(**SIZES, embedding_size=10),
    "DistilBertForMaskedLM": DistilBertConfig(101, 20, n_layers=2, n_heads=4, dim=24, hidden_dim=37),
    "ElectraForMaskedLM": ElectraConfig(**SIZES, embedding_size=10),
    "ElectraForPreTraining": ElectraConfig(**SIZES, embedding_size=10),
}
every = pytest.mark.parametrize("name", CONFIGS)


def theirs_of(name, config, seed=0):
    "Hugging Face's model of these sizes, every parameter random, in float64."
    kind = getattr(hf, name)
    theirs = kind(kind.config_class(**config.to_dict(), attn_implementation="eager"))
    return randomise_(theirs, seed).double().eval()


def batch_for(name, config, size, length, seed):
    "A batch with padding, and labels as the model takes them."
    batch = reference_batch(config, size, length, seed)
    order = batch.pop("next_sentence_label")
    if name.startswith("Albert"): batch["sentence_order_label"] = order
    if name == "ElectraForPreTraining": batch["labels"] = (batch["labels"] != -100).long()
    return batch


@st.composite
def cases(draw, name):
    heads, length = draw(st.integers(1, 4)), draw(st.integers(3, 17))
    pad = draw(st.sampled_from([0, 1, 7]))
    room = length + draw(st.integers(0, 9)) + (pad + 1) * name.startswith("Roberta")
    D = max(heads * draw(st.sampled_from([3, 4, 5, 8])), 4)
    config = replace(
        CONFIGS[name], vocab_size=draw(st.integers(12, 130)), max_position_embeddings=room, pad_token_id=pad)
    act, L, I = draw(st.sampled_from(["gelu", "gelu_new", "relu"])), draw(st.integers(1, 4)), draw(st.integers(5, 48))
    if name.startswith("Distil"): config = replace(config, dim=D, n_heads=heads, n_layers=L, hidden_dim=I, activation=act)
    else:
        config = replace(config, hidden_size=D, num_attention_heads=heads, num_hidden_layers=L, intermediate_size=I, hidden_act=act,
                         layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5, 1e-3])), type_vocab_size=draw(st.integers(1, 3)))
    if hasattr(config, "embedding_size"): config = replace(config, embedding_size=draw(st.sampled_from([3, 10, D])))
    seed = draw(st.integers(0, 10_000))
    return config, batch_for(name, config, draw(st.integers(1, 4)), length, seed), seed


def check_equal(name, case):
    config, batch, seed = case
    theirs = theirs_of(name, config, seed)
    ours = from_hf(theirs).eval()
    assert ours.config == config and family_of(ours)[0] == name
    inputs = {n: batch[n] for n in ("input_ids", "token_type_ids", "attention_mask")}
    real, asked = batch["attention_mask"], inputs | dict(output_hidden_states=True, output_attentions=True)
    with torch.no_grad():
        a, states, probs = ours(**inputs), ours.bert(**inputs).hidden_states, attentions(ours.bert, **inputs)
        b = theirs(**asked)
    assert_same(states, list(b.hidden_states), real)
    for p, q in zip(probs, b.attentions, strict=True): assert_same(p.transpose(1, 2), q.transpose(1, 2), real)
    theirs_logits = b.logits if hasattr(b, "logits") else b.prediction_logits
    ours_logits = a.logits if hasattr(a, "logits") else a.prediction_logits
    assert_same(ours_logits, theirs_logits, real)
    c = ours(**batch)
    if name == "ElectraForPreTraining":  # their loss is float32 in a double model: the formula
        out, seen = theirs(**inputs).logits, real.bool()
        loss = F.binary_cross_entropy_with_logits(out[seen], batch["labels"][seen].double())
        assert_same(c.loss, theirs(**batch).loss.double(), tol=1e-6)
    else: loss = theirs(**batch).loss
    assert_same(c.loss, loss)
    assert_same(c.loss, sum(c.losses.values()))
    c.loss.backward(), loss.backward()
    named, own = dict(theirs.named_parameters()), dict(ours.named_parameters())
    table = name_table(config, name)
    assert table.keys() == own.keys()
    for mine, their in table.items(): assert_same(own[mine].grad, named[their].grad, name=mine)
    given, state = to_hf(ours), theirs.state_dict()
    assert_same({n: given[n] for n in state}, dict(state), tol=0)
    if name.startswith("Albert"):
        assert_same(a.seq_relationship_logits, b.sop_logits)
        order = F.cross_entropy(b.sop_logits, batch["sentence_order_label"])
        assert_same(c.losses["sop"], order)


@every
@few_and_many
def test_equal_to_theirs(name, count):
    on_drawn(lambda case: check_equal(name, case), count // 5, cases(name))


@every
def test_checkpoints_go_both_ways(name, tmp_path):
    theirs = theirs_of(name, CONFIGS[name]).float()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_pretrained(tmp_path / "theirs")
    assert family_of(ours)[0] == name and not ours.fresh
    save_pretrained(ours, None, tmp_path / "ours")
    back, info = getattr(hf, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert_same(dict(back.state_dict()), dict(theirs.state_dict()), tol=0)


@every
def test_the_bare_encoder_of_theirs_opens(name, tmp_path):
    "Heads start fresh, as with BERT; ELECTRA's discriminator needs its own."
    if name.startswith("Electra"): pytest.skip("an encoder alone could be either")
    theirs = theirs_of(name, CONFIGS[name]).float()
    theirs.base_model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="MLM head"): ours = load_pretrained(tmp_path)
    assert "mlm_head" in ours.fresh
    batch = batch_for(name, CONFIGS[name], 3, 11, 0)
    inputs = {n: batch[n] for n in ("input_ids", "token_type_ids", "attention_mask")}
    with torch.no_grad(): a, b = ours.bert(**inputs).last_hidden_state, theirs.base_model(**inputs).last_hidden_state
    assert_same(a, b, inputs["attention_mask"], tol=1e-4)


@pytest.mark.parametrize("change", [dict(num_hidden_groups=2), dict(inner_group_num=2)])
def test_an_albert_of_several_layers_is_refused(change):
    theirs = hf.AlbertForPreTraining(hf.AlbertConfig(**CONFIGS["AlbertForPreTraining"].to_dict() | change))
    with pytest.raises(ValueError, match=next(iter(change))): from_hf(theirs)


# --- what must hold of each ---


def test_roberta_counts_tokens_and_not_places():
    ours = from_hf(theirs_of("RobertaForMaskedLM", CONFIGS["RobertaForMaskedLM"])).eval()
    ids = torch.tensor([[5, 6, 7, 1, 1]])
    real, left = (ids != 1).long(), ids.roll(2, 1)
    with torch.no_grad(): a, b = ours.bert(ids, None, real), ours.bert(left, None, (left != 1).long())
    assert_same(a.last_hidden_state[:, :3], b.last_hidden_state[:, 2:])
    longest = CONFIGS["RobertaForMaskedLM"].max_position_embeddings - 2
    ours.bert(torch.full((1, longest), 5))
    with pytest.raises(IndexError): ours.bert(torch.full((1, longest + 1), 5))


def test_albert_learns_one_layer_however_often_it_is_applied():
    config = CONFIGS["AlbertForPreTraining"]
    made = [resolve(FAMILIES["albert", "AlbertForPreTraining"].model)(replace(config, num_hidden_layers=n)) for n in (1, 7)]
    sizes = [sum(p.numel() for p in model.parameters()) for model in made]
    assert sizes[0] == sizes[1]
    ids = torch.tensor([[5, 6, 7]])
    assert [len(model.bert(ids).hidden_states) for model in made] == [2, 8]


@every
def test_every_parameter_gets_a_gradient_and_a_value_of_its_own(name):
    config = CONFIGS[name]
    model = resolve(FAMILIES[config.model_type, name].model)(config, seeded(1)).double()
    assert family_of(model)[0] == name
    model(**batch_for(name, config, 3, 11, 0)).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    assert all(p.std() > 0.01 for n, p in model.named_parameters() if p.dim() > 1)


def test_dropout_of_distilbert_is_where_theirs_is():
    "With all units dropped, what is left of a layer: attention's sum stays whole, the feed-forward's is the norm alone."
    theirs = theirs_of("DistilBertForMaskedLM", CONFIGS["DistilBertForMaskedLM"])
    ours = from_hf(theirs)
    for model in ours, theirs:
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout): part.p = 1.0 - 1e-12
        for part in model.modules():
            if hasattr(part, "heads"): part.dropout = 0.0
    for layer in theirs.distilbert.transformer.layer: layer.attention.dropout.p = 0.0
    x = torch.randn(2, 5, 24, dtype=torch.float64, generator=seeded(0))
    ours.train(), theirs.train()
    assert_same(ours.bert.encoder.layers[0](x), theirs.distilbert.transformer.layer[0](x))


# --- objectives ---


@pytest.fixture(scope="module")
def course():
    "Forty stories in the words of the course, and its tokenizer."
    _, tokenizer = open_course()
    return Corpus.build([story.sentences for story in stories(40)], tokenizer), tokenizer


def test_full_sentences_are_whole_and_fill_their_row(course):
    corpus, _ = course
    ends = {int(corpus.sentence_starts[k]) for k in corpus.document_starts[1:]}
    for first in range(0, corpus.n_sentences - 1, 7):
        for room in (12, 30, 200):
            row = full_sentences(corpus, first, room)
            assert row[0] == corpus.sentence_starts[first] and 0 < len(row) <= room
            text = [place for place in row if place >= 0]
            assert text == list(range(text[0], text[-1] + 1))
            gaps = [row[k + 1] for k, place in enumerate(row) if place == -1]
            assert gaps == [place for place in text[1:] if place in ends]
            if text[-1] + 1 < corpus.n_tokens and len(corpus.sentence(first)) <= room:
                assert text[-1] + 1 in set(corpus.sentence_starts.tolist())
                following = np.searchsorted(corpus.sentence_starts, text[-1] + 1)
                more = len(corpus.sentence(following)) + (text[-1] + 1 in ends)
                assert len(row) + more > room


@pytest.mark.parametrize("kind", [FullSentences, Replaced])
def test_masks_are_drawn_anew_for_each_step(course, kind):
    corpus, tokenizer = course
    examples = kind(corpus, tokenizer, 40, seed=3)
    a, b, again = examples.batch(0, 16), examples.batch(1, 16), examples.batch(0, 16)
    assert_same(a, again, tol=0)
    assert a["input_ids"].shape[1] <= 40 and a.keys() == b.keys()
    one = kind(Corpus.build([[stories(1)[0].sentences[0]]], tokenizer), tokenizer, 40, seed=3)
    hidden = [one.batch(step, 8) for step in range(3)]  # the same text in each
    assert all(not torch.equal(hidden[0][name], other[name]) for other in hidden[1:] for name in ("labels", "noise") if name in other)
    batch = examples.batch(2, 200, positions=True)
    text, chosen = batch["positions"] >= 0, batch["labels"] != -100
    assert not (chosen & ~text).any() and ((batch["positions"] == -1) | text).any()
    true = torch.from_numpy(corpus.ids[batch["positions"].clamp(min=0)].astype(np.int64))
    assert torch.equal(batch["labels"][chosen], true[chosen])
    assert torch.equal(batch["input_ids"][text & ~chosen], true[text & ~chosen])
    share, n = chosen.sum() / text.sum(), int(text.sum())
    assert abs(share - 0.15) < 5 * math.sqrt(0.15 * 0.85 / n) + 0.01
    hidden, k = (batch["input_ids"][chosen] == tokenizer.mask_id).double().mean(), int(chosen.sum())
    rate = 0.85 if kind is Replaced else 0.8
    assert abs(hidden - rate) < 5 * math.sqrt(rate * (1 - rate) / k)
    if kind is Replaced:  # the others stay
        stays = batch["input_ids"][chosen] != tokenizer.mask_id
        assert torch.equal(batch["input_ids"][chosen][stays], batch["labels"][chosen][stays])


def test_sentence_order_swaps_what_follows(course):
    corpus, tokenizer = course
    batch = OrderedPairs(corpus, tokenizer, 40, seed=5).batch(0, 400, positions=True)
    places, second = batch["positions"], batch["token_type_ids"].bool()
    for row, side, swapped in zip(places, second, batch["sentence_order_label"]):
        a, b = row[~side & (row >= 0)], row[side & (row >= 0)]
        assert (a[0] > b[0]) == bool(swapped)
    share = batch["sentence_order_label"].double().mean()
    assert abs(share - 0.5) < 5 * math.sqrt(0.25 / 400)
    documents = np.searchsorted(corpus.sentence_starts[corpus.document_starts], places, "right")
    assert all(len(set(row[p >= 0])) == 1 for row, p in zip(documents, places.numpy()))


def test_swapping_twice_gives_the_pairs_back():
    column = np.arange(4)
    pairs = Pairs(column, column + 10, column + 20, column + 30, np.zeros(4, bool))
    swapped = np.array([True, False, True, False])
    twice = swap_order(swap_order(pairs, swapped), swapped)
    assert all(np.array_equal(getattr(twice, n), getattr(pairs, n)) for n in ("a_start", "a_length", "b_start", "b_length"))


def test_distillation_is_its_formula_in_losses_and_gradients():
    "Against torch's own classes, on Hugging Face's student and teacher."
    config = CONFIGS["DistilBertForMaskedLM"]
    theirs, deep = theirs_of("DistilBertForMaskedLM", config), hf.BertForMaskedLM(hf.BertConfig(**SIZES))
    deep = randomise_(deep, 3).double().eval()
    ours = DistilBertStudent(config).double().eval()
    ours.load_state_dict(from_hf(theirs).state_dict())
    batch = {n: v for n, v in batch_for("", config, 4, 11, 2).items() if n != "token_type_ids"}
    inputs = {n: batch[n] for n in ("input_ids", "attention_mask")}
    with torch.no_grad(): taught = deep(**inputs, output_hidden_states=True)
    out = ours(**batch, teacher_logits=taught.logits, teacher_states=taught.hidden_states[-1])
    real, chosen, T = batch["attention_mask"].bool(), batch["labels"] != -100, 2
    b = theirs(**inputs, output_hidden_states=True)
    kl = torch.nn.KLDivLoss(reduction="batchmean")(
        (b.logits[real] / T).log_softmax(-1), (taught.logits[real] / T).softmax(-1)) * T**2
    mlm = F.cross_entropy(b.logits[chosen], batch["labels"][chosen])
    ones = torch.ones(int(real.sum()))
    cosine = torch.nn.CosineEmbeddingLoss()(b.hidden_states[-1][real], taught.hidden_states[-1][real], ones)
    loss = 5 * kl + 2 * mlm + cosine
    assert_same(out.losses, dict(mlm=2 * mlm, kl=5 * kl, cosine=cosine))
    assert_same(out.loss, loss)
    out.loss.backward(), loss.backward()
    named, own = dict(theirs.named_parameters()), dict(ours.named_parameters())
    for mine, their in name_table(config).items(): assert_same(own[mine].grad, named[their].grad, name=mine)


def test_a_student_that_equals_its_teacher_has_nothing_to_learn():
    logits, states = torch.randn(5, 7, generator=seeded(0)), torch.randn(5, 3, generator=seeded(1))
    same = distillation_losses(logits, states, logits, states)
    assert all(abs(value) < 1e-6 for value in same.values())


def test_a_student_begins_with_its_teacher(course):
    teacher = randomise_(BertForPreTraining(BertConfig(**SIZES))).eval()
    student = student_of(teacher, [1])
    assert_same(student.bert.encoder.layers[0].state_dict(), teacher.bert.encoder.layers[1].state_dict(), tol=0)
    assert_same(student.mlm_head.state_dict(), teacher.mlm_head.state_dict(), tol=0)
    tables = teacher.bert.embeddings.state_dict()
    assert_same(own := student.bert.embeddings.state_dict(), {name: tables[name] for name in own}, tol=0)
    assert len(student.bert.encoder.layers) == 1 and type(from_hf(to_hf(student), student.config)) is DistilBertStudent


def joint_pair(seed=0):
    "Ours with both models, and theirs with one block of tables between them."
    config = ElectraConfig(**SIZES | dict(hidden_size=32, intermediate_size=40), embedding_size=10)
    ours = randomise_(ElectraForJointTraining(config), seed).double().eval()
    finder = theirs_of("ElectraForPreTraining", config)
    maker = theirs_of("ElectraForMaskedLM", config.generator)
    finder.load_state_dict(to_hf(ours.discriminator))
    maker.load_state_dict(to_hf(ours.generator))
    maker.electra.embeddings = finder.electra.embeddings
    maker.generator_lm_head.weight = finder.electra.embeddings.word_embeddings.weight
    return config, ours, maker, finder


def joint_batch(config, seed=1):
    batch = batch_for("", config, 4, 11, seed)
    return batch | dict(noise=torch.rand(batch["labels"].shape, generator=seeded(seed)))


def test_electra_trains_both_by_the_formula():
    config, ours, maker, finder = joint_pair()
    batch = joint_batch(config)
    out = ours(**batch)
    inputs = {n: batch[n] for n in ("token_type_ids", "attention_mask")}
    asked, chosen = maker(batch["input_ids"], labels=batch["labels"], **inputs), batch["labels"] != -100
    corrupt = batch["input_ids"].clone()
    for b, s in chosen.nonzero().tolist():  # token by token
        cumulative, k = 0.0, 0
        probs = asked.logits[b, s].softmax(-1).tolist()
        while (cumulative := cumulative + probs[k]) <= batch["noise"][b, s]: k += 1
        corrupt[b, s] = k
    replaced = chosen & (corrupt != batch["labels"])
    assert replaced.any()
    logits, real = finder(corrupt, **inputs).logits, batch["attention_mask"].bool()
    rtd = F.binary_cross_entropy_with_logits(logits[real], replaced[real].double())
    loss = asked.loss + 50 * rtd
    assert_same(out.losses, dict(mlm=asked.loss, rtd=50 * rtd))
    assert_same(out.loss, loss)
    out.loss.backward(), loss.backward()
    pairs = [(ours.discriminator, finder), (ours.generator, maker)]
    for mine, theirs in pairs:
        named, own = dict(theirs.named_parameters()), dict(mine.named_parameters())
        for a, b in name_table(mine.config, family_of(mine)[0]).items(): assert_same(own[a].grad, named[b].grad, name=a)


def test_a_token_that_is_drawn_right_counts_as_original():
    config, ours, *_ = joint_pair()
    batch = joint_batch(config)
    told = {}
    ours.discriminator.register_forward_pre_hook(lambda part, given: told.update(ids=given[0], labels=given[3]))
    seen = (batch["labels"] != -100).nonzero()[0]
    with torch.no_grad():
        logits = ours.generator(batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]).logits[tuple(seen)].double()
        before = logits.softmax(-1).cumsum(-1)[batch["labels"][tuple(seen)]]
        batch["noise"][tuple(seen)] = (before - logits.softmax(-1)[batch["labels"][tuple(seen)]] / 2).float()
        ours(**batch)
    assert told["ids"][tuple(seen)] == batch["labels"][tuple(seen)] and not told["labels"][tuple(seen)]


def test_tokens_are_drawn_from_the_softmax():
    logits = torch.randn(1, 9, generator=seeded(2)).expand(20_000, -1)
    drawn = draw_tokens(logits, torch.rand(20_000, generator=seeded(3)))
    probs, counts = logits[0].double().softmax(-1), torch.bincount(drawn, minlength=9)
    assert (abs(counts / 20_000 - probs) < 5 * (probs * (1 - probs) / 20_000).sqrt()).all()
    assert draw_tokens(logits[:1], torch.zeros(1)).item() == 0
    assert draw_tokens(logits[:1], torch.full((1,), 1 - 2**-24)).item() == 8


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_a_batch_add_up(parts, course):
    "The noise is in the batch, so each part draws what the whole would."
    config, ours, *_ = joint_pair()
    student = randomise_(DistilBertStudent(CONFIGS["DistilBertForMaskedLM"])).double().eval()
    batch = joint_batch(config)
    taught = {n: v for n, v in batch.items() if n != "noise"} | dict(
        teacher_logits=torch.randn(4, 11, 101, generator=seeded(1)).double(), teacher_states=torch.randn(4, 11, 24, generator=seeded(2)).double())
    albert = randomise_(resolve(FAMILIES["albert", "AlbertForPreTraining"].model)(CONFIGS["AlbertForPreTraining"])).double().eval()
    for model, given in ((ours, batch), (student, taught), (albert, batch_for("Albert", config, 4, 11, 1))):
        found = []
        for n in (1, parts):
            model.zero_grad()
            found.append((Gradients(n)(model, given), {name: p.grad.clone() for name, p in model.named_parameters()}))
        assert_same(*found)


def test_a_joint_checkpoint_opens_as_their_discriminator(tmp_path):
    _, ours, maker, finder = joint_pair()
    ours.float()
    save_pretrained(ours, None, tmp_path)
    theirs, info = hf.ElectraForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert_same(dict(theirs.state_dict()), dict(finder.float().state_dict()), tol=0)
    back = load_pretrained(tmp_path)
    assert type(back) is ElectraForJointTraining
    assert_same(back.state_dict(), ours.state_dict(), tol=0)
    assert back.generator.bert.embeddings.norm is back.discriminator.bert.embeddings.norm
    assert_same(load_pretrained(tmp_path, architecture="ElectraForPreTraining").state_dict(), ours.discriminator.state_dict(), tol=0)
    assert_same(load_encoder(tmp_path).state_dict(), ours.discriminator.bert.state_dict(), tol=0)


@every
def test_a_fresh_encoder_is_of_the_same_kind(name):
    fresh, ours = make_encoder(CONFIGS[name], seeded(0)), from_hf(theirs_of(name, CONFIGS[name])).bert
    assert {n: p.shape for n, p in fresh.state_dict().items()} == {n: p.shape for n, p in ours.state_dict().items()}


def test_a_teacher_comes_with_the_batch(course):
    corpus, tokenizer = course
    teacher = BertForPreTraining(BertConfig(**SIZES | dict(vocab_size=tokenizer.vocab_size, max_position_embeddings=40)), seeded(0))
    examples = Taught(corpus, tokenizer, 40, seed=1, teacher=teacher.train())
    batch = examples.batch(3, 4)
    assert_same(batch, examples.batch(3, 4), tol=0)
    assert teacher.training and not batch["teacher_logits"].requires_grad
    B, S = batch["input_ids"].shape
    assert batch["teacher_logits"].shape == (B, S, tokenizer.vocab_size) and batch["teacher_states"].shape == (B, S, 24)


@every
def test_the_command_compares_them(name, course, tmp_path):
    _, tokenizer = course
    config = replace(CONFIGS[name], vocab_size=tokenizer.vocab_size, pad_token_id=tokenizer.pad_id)
    model = resolve(FAMILIES[config.model_type, name].model)(config, seeded(1))
    save_pretrained(randomise_(model).float(), tokenizer, tmp_path)
    result = compare_with_hf(tmp_path, ["anna lost her red ball.", "she ran."])
    assert result["largest"]["float64"] < 1e-9 and {"embeddings", "attention 2", "layer 2", "logits"} <= result["parts"].keys()
