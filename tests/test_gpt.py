"""GPT equals Hugging Face's GPT-2 over drawn configurations: states, probs, logits, loss, every gradient, and what it writes."""
import json
from dataclasses import asdict

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from hypothesis import strategies as st

from lockstep import few_and_many, on_drawn, one_thread, update_by_hand  # noqa: F401
from minibert.core.seeds import seeded
from minibert.gpt import GPTConfig, GPTForCausalLM, causal_mask, continue_texts, generate, next_logits
from minibert.train.optimizers import make_optimizers
from minibert.parity import assert_same, randomise_
from minibert.train.recipe import TrainingConfig
from minibert.tokenizer import WordPieceTokenizer
from minibert.training import fit, train_step
from minibert.weights import from_hf, load_pretrained, save_pretrained, to_hf
from minibert.data.windows import Windows

SMALL = GPTConfig(vocab_size=101, n_positions=20, n_embd=24, n_layer=2, n_head=4, n_inner=37,
                  resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def reference(config, seed=0):
    "Hugging Face's model of these sizes, every parameter random, in float64."
    theirs = hf.GPT2LMHeadModel(hf.GPT2Config(
        **config.to_dict(), bos_token_id=0, eos_token_id=0, attn_implementation="eager"))
    return randomise_(theirs, seed).double().eval()


def their_loss(logits, labels):
    "Their loss by the formula, since their own converts to float32."
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@st.composite
def cases(draw):
    heads, seed = draw(st.integers(1, 4)), draw(st.integers(0, 10_000))
    length, B = draw(st.integers(2, 15)), draw(st.integers(1, 4))
    config = GPTConfig(
        vocab_size=draw(st.integers(5, 120)), n_positions=length + draw(st.integers(0, 5)),
        n_embd=heads * draw(st.sampled_from([2, 3, 5, 8])), n_layer=draw(st.integers(1, 4)), n_head=heads,
        n_inner=draw(st.sampled_from([None, 7, 37])),
        activation_function=draw(st.sampled_from(["gelu_new", "gelu", "relu"])),
        layer_norm_epsilon=draw(st.sampled_from([1e-5, 1e-12, 1e-3])))
    g = seeded(seed)
    ids = torch.randint(config.vocab_size, (B, length), generator=g)
    lengths = torch.randint(2, length + 1, (B, 1), generator=g)
    real = (torch.arange(length) < lengths).long()
    if draw(st.booleans()): real = real.flip(1)
    return config, ids, real, seed


def check_equal(case):
    config, ids, real, seed = case
    theirs = reference(config, seed)
    ours = from_hf(theirs).eval()
    wants = dict(attention_mask=real, output_hidden_states=True, output_attentions=True)
    a, b = ours(ids, **wants), theirs(ids, **wants)
    assert_same(a.hidden_states, b.hidden_states, real)
    for x, y in zip(a.attentions, b.attentions): assert_same(x.transpose(1, 2), y.transpose(1, 2), real)
    assert_same(a.logits, b.logits, real)
    labels = ids.masked_fill(real == 0, -100)
    labels[:, 1:].masked_fill_(real[:, :-1] == 0, -100)  # padding predicts nothing
    loss, formula = ours(ids, real, labels=labels).loss, their_loss(b.logits, labels)
    assert_same(loss, formula)
    assert_same(loss.float(), theirs(ids, attention_mask=real, labels=labels).loss.float(), tol=2e-6)
    loss.backward()
    formula.backward()
    moved = GPTForCausalLM(config).double()
    moved.load_state_dict({name: p.grad for name, p in ours.named_parameters()})
    assert_same({k: v for k, v in to_hf(moved).items() if k != "lm_head.weight"},
                {name: p.grad for name, p in theirs.named_parameters()})


@few_and_many
def test_equal_to_hugging_face(count): on_drawn(check_equal, count, cases())


def test_every_parameter_gets_a_gradient():
    model = GPTForCausalLM(SMALL, seeded(0))
    ids = torch.randint(101, (2, 20), generator=seeded(1))
    model(ids, labels=ids).loss.backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())


def test_initial_weights_are_smaller_where_results_add_up():
    model = GPTForCausalLM(GPTConfig(4000, n_positions=300, n_embd=128, n_layer=8, n_head=4), seeded(0))
    for name, p in model.named_parameters():
        if p.dim() < 2: continue
        last = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
        wanted = 0.02 / (16 ** 0.5 if last else 1)
        assert abs(p.std().item() / wanted - 1) < 5 / (2 * p.numel()) ** 0.5, name


def test_no_token_sees_the_next_one():
    model = GPTForCausalLM(SMALL, seeded(0)).double().eval()
    ids = torch.randint(101, (1, 12), generator=seeded(1))
    before = model(ids).logits
    for k in range(12):
        other = ids.clone()
        other[0, k] = (other[0, k] + 1) % 101
        changed = (model(other).logits != before).any(-1)[0]
        assert not changed[:k].any() and changed[k:].all()


def test_counts_make_parts_add_up():
    "The loss and gradient of a batch do not depend on how it is cut."
    ids = torch.randint(101, (6, 9), generator=seeded(2))
    labels = ids.clone()
    labels[1, 4:], labels[4, 2:], labels[5] = -100, -100, -100
    told = []
    for parts in 1, 2, 3:
        model = GPTForCausalLM(SMALL, seeded(0)).double()
        config = TrainingConfig(steps=4, batch_size=6, gradient_accumulation_steps=parts)
        line = train_step(model, make_optimizers(model, config), dict(input_ids=ids, labels=labels), 0, config)
        told.append([line["loss"], line["clm_loss"], line["grad_norm"]])
    assert model.counts(dict(labels=labels)) == {"clm": 8 * 3 + 3 + 1}
    assert_same(told[0], told[1], tol=1e-12)
    assert_same(told[0], told[2], tol=1e-12)


def test_fifty_steps_in_lockstep_with_theirs():
    theirs = reference(SMALL, 3)
    ours = from_hf(theirs).train()
    theirs.train()
    for dropout in theirs.modules():
        if isinstance(dropout, torch.nn.Dropout): dropout.p = 0.0
    config = TrainingConfig(steps=50, batch_size=4, learning_rate=1e-3)
    mine, other = make_optimizers(ours, config), make_optimizers(theirs, config)
    for step in range(50):
        ids = torch.randint(101, (4, 16), generator=seeded(5, step))
        line = train_step(ours, mine, dict(input_ids=ids, labels=ids), step, config)
        loss = their_loss(theirs(ids).logits, ids)
        loss.backward()
        norm = update_by_hand(theirs, other, line["learning_rate"], config.max_grad_norm)
        assert_same([line["loss"], line["grad_norm"]], [loss.item(), norm.item()], tol=1e-9)
    assert_same(to_hf(ours), theirs.state_dict(), tol=1e-9)


def test_checkpoints_go_both_ways_bit_for_bit(tmp_path):
    theirs = reference(SMALL, 1).float()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_pretrained(tmp_path / "theirs")
    assert all(torch.equal(a, theirs.state_dict()[name]) for name, a in to_hf(ours).items())
    save_pretrained(ours, None, tmp_path / "ours")
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager")
    assert type(again) is hf.GPT2LMHeadModel
    assert all(torch.equal(a, again.state_dict()[name]) for name, a in theirs.state_dict().items())
    assert again.lm_head.weight is again.transformer.wte.weight
    twice = load_pretrained(tmp_path / "ours")
    assert all(torch.equal(a, b) for a, b in zip(twice.parameters(), ours.parameters()))
    bare = {k.removeprefix("transformer."): v for k, v in theirs.state_dict().items() if k != "lm_head.weight"}
    assert_same(to_hf(from_hf(bare, SMALL)), to_hf(ours), tol=0)


def test_a_pipeline_opens_our_checkpoint(tmp_path):
    tokenizer = WordPieceTokenizer.train(["anna lost her red ball .", "the dog ran home ."], vocab_size=60)
    config = GPTConfig(tokenizer.vocab_size, n_positions=30, n_embd=24, n_layer=2, n_head=4)
    model = GPTForCausalLM(config, seeded(0)).eval()
    save_pretrained(model, tokenizer, tmp_path / "m")
    write = hf.pipeline("text-generation", model=str(tmp_path / "m"), tokenizer=hf.BertTokenizerFast.from_pretrained(tmp_path / "m"))
    ids = torch.tensor([tokenizer.ids("anna lost")])
    mine = [t.item() for t in generate(model, ids, 5, temperature=0)]
    said = write.model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert said[0, ids.shape[1]:].tolist() == mine


@pytest.mark.parametrize("change", [dict(scale_attn_by_inverse_layer_idx=True), dict(scale_attn_weights=False),
                                    dict(add_cross_attention=True), dict(tie_word_embeddings=False)])
def test_another_computation_is_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        GPTConfig.from_dict(SMALL.to_dict() | change)


def test_configs_that_describe_no_gpt():
    with pytest.raises(ValueError, match="4 heads"): GPTConfig(n_embd=26, n_head=4)
    with pytest.raises(ValueError, match="n_layer"): GPTConfig(n_layer=0)
    with pytest.raises(ValueError, match="GPTConfig has no field 'n_layers'"): GPTConfig.from_dict(dict(n_layers=3))
    assert GPTConfig.from_dict(json.loads(json.dumps(hf.GPT2Config().to_dict()))) == GPTConfig()
    assert asdict(GPTConfig()) == GPTConfig().to_dict()


def check_cached(case, pieces):
    config, ids, real, seed = case
    real = real.flip(1) if not real[:, -1].all() else real  # padding on the left, as prompts have it
    ours = from_hf(reference(config, seed)).eval()
    places = (real.cumsum(1) - 1).clamp(min=0)
    whole = ours(ids, real, places).logits
    ends = sorted({*torch.randint(1, ids.shape[1] + 1, (pieces,), generator=seeded(seed)).tolist(), ids.shape[1]})
    cache, start = [[] for _ in range(config.n_layer)], 0
    for end in ends:
        with torch.no_grad(): told = next_logits(ours, ids[:, start:end], real[:, :end], cache)
        shown = real[:, end - 1].bool()
        if shown.any(): assert_same(told[shown], whole[shown, end - 1])
        start = end


@few_and_many
def test_cached_equals_uncached(count): on_drawn(check_cached, count, cases(), st.integers(0, 3))


def test_greedy_is_theirs_with_prompts_of_unequal_length():
    theirs = reference(SMALL, 4)
    theirs.generation_config.eos_token_id = None
    ours, ids = from_hf(theirs).eval(), torch.randint(1, 101, (3, 6), generator=seeded(9))
    real = torch.ones_like(ids)
    real[0, :4], real[2, :1] = 0, 0
    said = theirs.generate(ids, attention_mask=real, max_new_tokens=12, do_sample=False, pad_token_id=0)
    mine = torch.stack(list(generate(ours, ids, 12, real=real, temperature=0)), 1)
    assert torch.equal(mine, said[:, 6:])


def test_a_text_longer_than_the_positions_slides():
    model = GPTForCausalLM(SMALL, seeded(0)).double().eval()
    ids = torch.randint(101, (2, 7), generator=seeded(1))
    told = torch.stack(list(generate(model, ids, 50, temperature=0)), 1)
    text = torch.cat([ids, told], 1)
    assert told.shape == (2, 50)
    shown = text[:, :20]  # the last token before the first slide
    assert torch.equal(model(shown).logits[:, -1].argmax(-1), text[:, 20])
    half = text[:, 11:21]  # after it: the last ten
    assert torch.equal(model(half).logits[:, -1].argmax(-1), text[:, 21])


def test_seeds_decide_the_draws_and_rows_stop():
    model = GPTForCausalLM(SMALL, seeded(0))
    ids = torch.randint(101, (4, 5), generator=seeded(1))
    run = lambda **how: torch.stack(list(generate(model, ids, 30, **how)), 1)
    assert torch.equal(run(seed=3), run(seed=3)) and not torch.equal(run(seed=3), run(seed=4))
    stop = int(run(seed=3)[0, 4])
    told = run(seed=3, stop=stop)
    for row in told.tolist():
        if stop in row: assert set(row[row.index(stop):]) == {stop}
    free = run(seed=3)
    for a, b in zip(told.tolist(), free.tolist()):
        n = a.index(stop) if stop in a else len(a)
        assert a[:n] == b[:n]


@pytest.mark.parametrize("how, said", [
    (dict(temperature=-1.0), "temperature"), (dict(top_k=0), "top_k"), (dict(top_p=1.5), "top_p"),
    (dict(tokens=0), "tokens is 0"), (dict(real=torch.ones(1, 3)), "real"),
])
def test_what_cannot_be_continued_is_refused_at_once(how, said):
    model, ids = GPTForCausalLM(SMALL, seeded(0)), torch.tensor([[1, 2]])
    with pytest.raises(ValueError, match=said): generate(model, ids, **dict(tokens=3) | how)


def test_prompts_that_cannot_be_continued():
    model = GPTForCausalLM(SMALL, seeded(0))
    for ids, said in ((torch.zeros(1, 0, dtype=torch.long), "a token in each row"),
                      (torch.zeros(1, 21, dtype=torch.long), "reads 20"), (torch.tensor([[101]]), "0 to 100")):
        with pytest.raises(ValueError, match=said): generate(model, ids, 3)
    with pytest.raises(ValueError, match="int64"): model(torch.tensor([[1, 2]]), labels=torch.tensor([[1.0, 2.0]]))
    with pytest.raises(ValueError, match="positions"): model(torch.zeros(1, 21, dtype=torch.long))
    with pytest.raises(ValueError): next_logits(model, torch.tensor([[1]]), torch.ones(1, 1, dtype=torch.long), [[]])


def test_masks_hide_padding_and_the_future_in_one_go():
    real = torch.tensor([[0, 0, 1, 1]])
    mask = causal_mask(real, 4, torch.float64)
    assert mask.isfinite().all() and mask.softmax(-1).isfinite().all()
    assert (mask[0, 0] == 0).tolist() == [[False] * 4, [False] * 4, [False, False, True, False], [False, False, True, True]]


def test_a_run_goes_on_where_it_stopped(tmp_path):
    from minibert.data.corpus import Corpus
    from minibert.data.documents import load_documents
    documents = load_documents("stories", limit=40)
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=300)
    windows = Windows(Corpus.build(documents, tokenizer), tokenizer, 16)
    config = TrainingConfig(steps=6, batch_size=4, length=16, checkpoint_steps=3, log_steps=1, keep_checkpoints=3)
    sizes = GPTConfig(tokenizer.vocab_size, n_positions=16, n_embd=24, n_layer=2, n_head=4)
    model = GPTForCausalLM(sizes, seeded(0))
    whole = fit(model, windows, config, tmp_path / "a", progress=False)
    import shutil
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    newest = max((tmp_path / "b" / "checkpoints").iterdir(), key=lambda p: p.name)
    shutil.rmtree(newest)
    from minibert.hub.files import build_model
    from minibert.train.checkpoints import latest_checkpoint
    again = build_model(latest_checkpoint(tmp_path / "b")[0])
    assert fit(again, windows, config, tmp_path / "b", resume=True, progress=False) == whole
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters()))


def test_samples_and_prompts():
    tokenizer = WordPieceTokenizer.train(["anna lost her red ball .", "the dog ran home ."], vocab_size=60)
    model = GPTForCausalLM(GPTConfig(tokenizer.vocab_size, n_positions=30, n_embd=24, n_layer=2, n_head=4), seeded(0))
    told = continue_texts(model, tokenizer, ["anna", "the dog ran"], tokens=6, samples=3, seed=1)
    assert len(told) == 6 and len(set(told)) > 1
    assert told == continue_texts(model, tokenizer, ["anna", "the dog ran"], tokens=6, samples=3, seed=1)
    with pytest.raises(ValueError, match="no prompt"): continue_texts(model, tokenizer, [])
